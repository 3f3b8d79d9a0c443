"""What runs besides us is found, with names and without command lines."""

import dataclasses
import os
import re

import pytest

from harness.doctor import load
from harness.doctor.load import CurrentLoad, Neighbour
from harness.machine.core_clock import TICK_SEC
from harness.machine.disturbance import Disturbance

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
    _check(load.check_neighbours(_load(**fields), 2), level, found, advice)


def test_a_high_load_average_is_a_caution():
    """Over half of the cores in the last minute."""
    wait = "wait until it is low, or find what runs: top"
    for average, level, advice in ((1.0, "ok", ""), (1.5, "caution", wait)):
        finding = load.check_load_average(_load(load_average=average), 2)
        _check(finding, level, rf"{average:.2f} over the last minute", advice)
    hidden = load.check_load_average(_load(load_average=None), 2)
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
    finding = load.check_steal(_load(stolen_cpu_fraction=fraction))
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
    _check(load.check_throttling(_load(**fields)), level, found, advice)


def test_missing_thread_times_are_a_caution():
    """The void rule is coarser without them."""
    _check(load.check_accounting(_load()), "ok", "run time of threads in nanoseconds")
    _check(
        load.check_accounting(_load(has_thread_times=False)),
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
    found = load.read_load(
        (0,), fake_root.path, sleep=lambda _: write(load.SPAN_SEC, ticks)
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
