"""Each setting that moves timings is found, and the advice says what to do."""

import re

import pytest

from harness.doctor import settings
from harness.machine.topology import CpuTopology, LogicalCpu

CPU = "sys/devices/system/cpu"
GIB = 2**20  # of /proc/meminfo, which counts in KiB


def _cpus(*cores, quota=None):
    """CPUs 0, 1, ... on these cores."""
    cpus = tuple(LogicalCpu(cpu=cpu, core=core) for cpu, core in enumerate(cores))
    return CpuTopology(cpus=cpus, quota_cores=quota)


def _check(finding, level, found, advice=""):
    assert level == finding.level
    assert re.fullmatch(found, finding.found)
    assert re.fullmatch(advice, finding.advice)


def test_a_quota_below_the_cpus_is_a_caution():
    _check(
        settings.check_quota(_cpus(0, 1, 2, quota=2.5)),
        "caution",
        r"2\.5 cores for 3 CPUs: busy processes are stopped in turns",
        r"raise the quota, or use no more CPUs than it grants: taskset -c 0,1 \.\.\.",
    )
    _check(settings.check_quota(_cpus(0, 1, quota=2.0)), "ok", "2 cores")
    _check(settings.check_quota(_cpus(0, 1)), "ok", "none")


def test_two_threads_of_a_core_are_a_caution():
    _check(
        settings.check_smt(_cpus(0, 0, 1, 1)),
        "caution",
        "4 CPUs are 2 cores: two threads share a core",
        r"use one CPU of each core: taskset -c 0,2 \.\.\.",
    )
    _check(settings.check_smt(_cpus(0, 1)), "ok", "each of 2 CPUs is a core of its own")


@pytest.mark.parametrize(
    ("governors", "level", "found"),
    [
        ((), "ok", "not visible from here"),
        (("performance", "performance"), "ok", "performance"),
        (
            ("performance", "powersave"),
            "caution",
            "performance, powersave: the clock depends on the load before",
        ),
    ],
)
def test_a_governor_that_lowers_the_clock_is_a_caution(
    fake_root, governors, level, found
):
    """On any of the cores."""
    for cpu, governor in enumerate(governors):
        fake_root.write(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor", governor)
    advice = "" if level == "ok" else "sudo cpupower frequency-set -g performance"

    _check(settings.check_governor(_cpus(0, 1), fake_root.path), level, found, advice)


def test_boost_is_a_caution(fake_root):
    """One busy core has a higher clock than all."""
    _check(settings.check_boost(fake_root.path), "ok", "not visible from here")
    fake_root.write(f"{CPU}/cpufreq/boost", "0")
    _check(settings.check_boost(fake_root.path), "ok", "off")
    fake_root.write(f"{CPU}/cpufreq/boost", "1")
    _check(
        settings.check_boost(fake_root.path),
        "caution",
        "on: one busy core has a higher clock than many, so efficiency looks lower",
        "compare with the compute ceiling below, or switch boost off in the firmware",
    )


def test_huge_pages_that_move_memory_are_a_caution(fake_root):
    """Only the setting ``always`` does that."""
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    _check(settings.check_huge_pages(fake_root.path), "ok", "not visible from here")
    fake_root.write(path, "always madvise [never]")
    _check(settings.check_huge_pages(fake_root.path), "ok", "never")
    fake_root.write(path, "[always] madvise never")
    _check(
        settings.check_huge_pages(fake_root.path),
        "caution",
        "always: the kernel merges pages of memory while a trial runs",
        r"echo madvise \| sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


@pytest.mark.parametrize(
    ("gib", "level", "advice"),
    [
        (8, "ok", ""),
        (3, "caution", r"end other programs, or sweep fewer cases: each .* 1 GiB"),
        (0.5, "bad", "end other programs: a single trial needs 1 GiB"),
    ],
)
def test_little_memory_is_found(fake_root, gib, level, advice):
    """Below 4 GiB a caution, below 1 GiB unusable."""
    text = f"MemTotal: {16 * GIB} kB\nMemAvailable:  {int(gib * GIB)} kB\nx\n"
    fake_root.write("proc/meminfo", text)

    _check(
        settings.check_memory(fake_root.path),
        level,
        rf"{gib:.1f} GiB of 16\.0 available",
        advice,
    )


def test_memory_that_cannot_be_seen_is_said(fake_root):
    _check(settings.check_memory(fake_root.path), "ok", "not visible from here")


@pytest.mark.parametrize(
    ("free_gib", "moved", "level", "found"),
    [
        (4, 0, "ok", "none in use"),
        (4, None, "ok", "none in use"),
        (3, 0, "caution", r"1\.0 GiB in use"),
        (3, 12, "bad", r"1\.0 GiB in use, 12 pages moved just now"),
    ],
)
def test_swap_is_found(fake_root, free_gib, moved, level, found):
    """In use it is a caution; pages that move make timings unusable."""
    text = f"SwapTotal: {4 * GIB} kB\nSwapFree: {free_gib * GIB} kB\n"
    fake_root.write("proc/meminfo", text)
    advice = "end other programs, then: sudo swapoff -a && sudo swapon -a"
    if level == "ok":
        advice = ""

    _check(settings.check_swap(fake_root.path, moved), level, found, advice)


def test_pages_that_moved_are_counted_where_the_kernel_does(fake_root):
    assert settings.read_swapped_pages(fake_root.path) is None
    fake_root.write("proc/vmstat", "pgfault 9\npswpin 3\npswpout 4\n")

    assert 7 == settings.read_swapped_pages(fake_root.path)
