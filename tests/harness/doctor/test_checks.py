"""``doctor`` prints its checks of load and settings, and exits with 6 if one is bad."""

import dataclasses
import json
import os
import re

import pytest

from harness.cli import exit_codes
from harness.doctor import checks as checks_lib
from harness.doctor import diagnose
from harness.doctor.checks import CurrentLoad, Neighbour, bad, caution, ok
from harness.machine.disturbance import Disturbance
from harness.machine.machine_state import TICK_SEC, CpuTopology, LogicalCpu

FINE = ok("steal", "0.0 % of the cores")
CAUTION = caution("boost", "on: [bold]x", "switch it off")
BAD = bad("swap", "1.0 GiB in use", "end other programs")


@pytest.mark.parametrize(
    ("findings", "code", "last_line"),
    [
        ([FINE], exit_codes.OK, "fit for timings"),
        ([FINE, CAUTION], exit_codes.OK, "fit for timings, with 1 caution"),
        ([CAUTION, CAUTION], exit_codes.OK, "fit for timings, with 2 cautions"),
        ([FINE, BAD, CAUTION], exit_codes.UNFIT, "unfit for timings: swap"),
    ],
)
def test_the_table_and_the_exit_code(harness, monkeypatch, findings, code, last_line):
    monkeypatch.setattr(diagnose, "diagnose", lambda measures: findings)
    found_code, out, err = harness("doctor")

    assert code == found_code
    assert last_line == out.splitlines()[-1]
    for finding in findings:
        (row,) = {line for line in out.splitlines() if f" {finding.check} " in line}
        assert finding.level in row
        assert finding.found in row
        assert finding.advice in row
    assert err.startswith("checking for about ")


def test_json_has_the_same(harness, monkeypatch):
    monkeypatch.setattr(diagnose, "diagnose", lambda measures: [FINE, BAD])
    code, out, _ = harness("doctor", "--json")
    data = json.loads(out)

    assert exit_codes.UNFIT == code
    assert data["is_fit"] is False
    assert [
        {"check": f.check, "level": f.level, "found": f.found, "advice": f.advice}
        for f in (FINE, BAD)
    ] == data["findings"]


def test_every_check_has_its_row(monkeypatch):
    monkeypatch.setattr(checks_lib, "SPAN_SEC", 0.1)
    findings = diagnose.diagnose(measures=(lambda cores: [ok("x", str(len(cores)))],))
    checks = [finding.check for finding in findings]

    assert len(checks) == len(set(checks))
    assert {"neighbours", "steal", "throttling", "CPU quota", "memory"} <= set(checks)
    assert "x" == checks[-1]
    assert all((f.level == "ok") == (f.advice == "") for f in findings)
    assert all("\n" not in f.found + f.advice for f in findings)


QUIET = Disturbance(
    foreign_cpu_fraction=0.0,
    foreign_resolution=0.005,
    stolen_cpu_fraction=0.0,
    stolen_resolution=0.005,
    run_delay_sec=0.0,
    num_throttled=0,
    throttled_sec=0.0,
)


def _load(**fields):
    """A quiet machine but for some facts."""
    changes = {key: fields.pop(key) for key in [*fields] if hasattr(QUIET, key)}
    defaults = {
        "disturbance": dataclasses.replace(QUIET, **changes),
        "neighbours": (),
        "load_average": 0.1,
        "num_swapped_pages": 0,
        "num_thermal": 0,
        "has_thread_times": True,
    }
    return CurrentLoad(**(defaults | fields))


def _check(finding, level, found, advice=""):
    assert level == finding.level
    assert re.fullmatch(found, finding.found)
    assert re.fullmatch(advice, finding.advice)


BUSY = (Neighbour(name="cc1", fraction=0.5), Neighbour(name="sshd", fraction=0.02))


@pytest.mark.parametrize(
    ("fields", "level", "found", "advice"),
    [
        ({"foreign_cpu_fraction": 0.004}, "ok", r"others use 0\.4 % of 2 cores", ""),
        ({"foreign_cpu_fraction": 0.034}, "ok", r"others use 3\.4 % of 2 cores", ""),
        (
            {"foreign_cpu_fraction": 0.01, "neighbours": BUSY[1:]},
            "caution",
            r"others use 1\.0 % of 2 cores: sshd 2 % of one core",
            "end them if they can become busy",
        ),
        (
            {"foreign_cpu_fraction": 0.26, "neighbours": BUSY},
            "bad",
            r"others use 26\.0 % of 2 cores: cc1 50 %, sshd 2 % of one core",
            "end them or wait: turns above 3 % are void",
        ),
        (
            {"foreign_cpu_fraction": 0.26},
            "bad",
            r"others use 26\.0 % of 2 cores, by processes that are not visible .*",
            "end them or wait: turns above 3 % are void",
        ),
        (
            {"foreign_cpu_fraction": None},
            "caution",
            r"the kernel hides the CPU time of cores \(/proc/stat\)",
            "turns disturbed by others cannot be recognized here: keep it quiet",
        ),
    ],
)
def test_neighbours_are_found(fields, level, found, advice):
    """Bad where turns would be void."""
    _check(checks_lib.check_neighbours(_load(**fields), 2), level, found, advice)


def test_a_high_load_average_is_a_caution():
    wait = "wait until it is low, or find what runs: top"
    for average, level, advice in ((1.0, "ok", ""), (1.5, "caution", wait)):
        finding = checks_lib.check_load_average(_load(load_average=average), 2)
        _check(finding, level, rf"{average:.2f} over the last minute", advice)
    hidden = checks_lib.check_load_average(_load(load_average=None), 2)
    _check(hidden, "ok", "not visible from here")


@pytest.mark.parametrize(
    ("fraction", "level", "found", "advice"),
    [
        (0.0, "ok", r"0\.0 % of the cores", ""),
        (0.01, "caution", r"1\.0 % of the cores", "prefer a host without other guests"),
        (
            0.02,
            "bad",
            r"2\.0 % of the cores",
            "use a host without other guests: turns above 1 % are void",
        ),
        (None, "ok", "not counted here", ""),
    ],
)
def test_steal_is_found(fraction, level, found, advice):
    """With one tick as what can be rounding."""
    finding = checks_lib.check_steal(_load(stolen_cpu_fraction=fraction))
    _check(finding, level, found, advice)


@pytest.mark.parametrize(
    ("fields", "level", "found", "advice"),
    [
        ({}, "ok", "none", ""),
        ({"num_throttled": None, "num_thermal": None}, "ok", "not counted here", ""),
        (
            {"num_thermal": 7},
            "caution",
            "none now, 7 times by heat since boot",
            "check the cooling before a long sweep",
        ),
        (
            {"num_throttled": 2},
            "bad",
            "2 times within 3 s",
            "raise the CPU quota, or cool the machine: throttled turns are void",
        ),
    ],
)
def test_throttling_is_found(fields, level, found, advice):
    """Just now it makes turns void; since boot it is a warning."""
    _check(checks_lib.check_throttling(_load(**fields)), level, found, advice)


def test_missing_thread_times_are_a_caution():
    """The void rule is coarser without them."""
    _check(
        checks_lib.check_accounting(_load()), "ok", "run time of threads in nanoseconds"
    )
    _check(
        checks_lib.check_accounting(_load(has_thread_times=False)),
        "caution",
        r"no /proc/<pid>/task/<tid>/schedstat: run times in ticks, no run delay",
        "use longer turns, or a kernel with CONFIG_SCHED_INFO",
    )


def test_the_load_is_read_over_a_span(fake_root):
    """Names are summed and sorted; this process and idle ones are not neighbours."""
    ticks = round(0.5 / TICK_SEC)

    def write(sleep_sec, used):
        fake_root.cores((round(sleep_sec / TICK_SEC), 0, 0, 0))
        fake_root.thread(os.getpid(), os.getpid(), sleep_sec)
        fake_root.process(os.getpid(), used, 0)
        fake_root.process(11, used, 5, name="make")
        fake_root.process(12, used, 5, name="make")
        fake_root.process(13, used // 2, 5, name="cc1 \x1b[31m")
        fake_root.process(14, 0, 5, name="idle")
        fake_root.write("proc/loadavg", "0.25 0.1 0.1 1/100 7\n")
        fake_root.write("proc/vmstat", f"pswpin {used}\n")

    write(0.0, 0)
    found = checks_lib.read_load(
        (0,), fake_root.path, sleep=lambda _: write(checks_lib.SPAN_SEC, ticks)
    )

    # The wall clock is real, and no time passes.
    assert ["make", "cc1 \\x1b[31m"] == [n.name for n in found.neighbours]
    assert 4 == pytest.approx(
        found.neighbours[0].fraction / found.neighbours[1].fraction
    )
    assert 0.25 == found.load_average
    assert ticks == found.num_swapped_pages
    assert found.has_thread_times
    assert found.num_thermal is None


CPU = "sys/devices/system/cpu"
GIB = 2**20  # of /proc/meminfo, which counts in KiB


def _cpus(*cores, quota=None):
    cpus = tuple(LogicalCpu(cpu=cpu, core=core) for cpu, core in enumerate(cores))
    return CpuTopology(cpus=cpus, quota_cores=quota)


def test_a_quota_below_the_cpus_is_a_caution():
    _check(
        checks_lib.check_quota(_cpus(0, 1, 2, quota=2.5)),
        "caution",
        r"2\.5 cores for 3 CPUs: busy processes are stopped in turns",
        r"raise the quota, or use no more CPUs than it grants: taskset -c 0,1 \.\.\.",
    )
    _check(checks_lib.check_quota(_cpus(0, 1, quota=2.0)), "ok", "2 cores")
    _check(checks_lib.check_quota(_cpus(0, 1)), "ok", "none")


def test_two_threads_of_a_core_are_a_caution():
    _check(
        checks_lib.check_smt(_cpus(0, 0, 1, 1)),
        "caution",
        "4 CPUs are 2 cores: two threads share a core",
        r"use one CPU of each core: taskset -c 0,2 \.\.\.",
    )
    _check(
        checks_lib.check_smt(_cpus(0, 1)), "ok", "each of 2 CPUs is a core of its own"
    )


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

    _check(checks_lib.check_governor(_cpus(0, 1), fake_root.path), level, found, advice)


def test_boost_is_a_caution(fake_root):
    """One busy core has a higher clock than all."""
    _check(checks_lib.check_boost(fake_root.path), "ok", "not visible from here")
    fake_root.write(f"{CPU}/cpufreq/boost", "0")
    _check(checks_lib.check_boost(fake_root.path), "ok", "off")
    fake_root.write(f"{CPU}/cpufreq/boost", "1")
    _check(
        checks_lib.check_boost(fake_root.path),
        "caution",
        "on: one busy core has a higher clock than many, so efficiency looks lower",
        "compare with the compute ceiling below, or switch boost off in the firmware",
    )


def test_huge_pages_that_move_memory_are_a_caution(fake_root):
    """Only the setting ``always`` does that."""
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    _check(checks_lib.check_huge_pages(fake_root.path), "ok", "not visible from here")
    fake_root.write(path, "always madvise [never]")
    _check(checks_lib.check_huge_pages(fake_root.path), "ok", "never")
    fake_root.write(path, "[always] madvise never")
    _check(
        checks_lib.check_huge_pages(fake_root.path),
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
    text = f"MemTotal: {16 * GIB} kB\nMemAvailable:  {int(gib * GIB)} kB\nx\n"
    fake_root.write("proc/meminfo", text)

    _check(
        checks_lib.check_memory(fake_root.path),
        level,
        rf"{gib:.1f} GiB of 16\.0 available",
        advice,
    )


def test_memory_that_cannot_be_seen_is_said(fake_root):
    _check(checks_lib.check_memory(fake_root.path), "ok", "not visible from here")


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
    text = f"SwapTotal: {4 * GIB} kB\nSwapFree: {free_gib * GIB} kB\n"
    fake_root.write("proc/meminfo", text)
    advice = "end other programs, then: sudo swapoff -a && sudo swapon -a"
    if level == "ok":
        advice = ""

    _check(checks_lib.check_swap(fake_root.path, moved), level, found, advice)


def test_pages_that_moved_are_counted_where_the_kernel_does(fake_root):
    assert checks_lib.read_swapped_pages(fake_root.path) is None
    fake_root.write("proc/vmstat", "pgfault 9\npswpin 3\npswpout 4\n")

    assert 7 == checks_lib.read_swapped_pages(fake_root.path)
