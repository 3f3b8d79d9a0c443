"""The share of the machine that others used is distinguished from the trial's own."""

import subprocess
import sys
import time

import psutil
import pytest

from harness.machine import foreign_load
from harness.machine.foreign_load import CpuClock

SPIN_SEC = 0.6
# Uses so many seconds of CPU time.
SPIN = (
    sys.executable,
    "-c",
    "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass",
)
# More than the machine has, so that no share is cut off at 1.
NUM_CPUS = 64


def _clock(wall, busy, own, stolen=0.0):
    return CpuClock(wall_sec=wall, busy_sec=busy, stolen_sec=stolen, own_sec=own)


def test_foreign_time_is_what_is_busy_and_not_ours():
    """10 s on 2 CPUs with 12 s busy, 7 s of them ours: 5 of 20 s are foreign."""
    load = foreign_load.between(_clock(0, 100, 50), _clock(10, 112, 57, 2), 2)

    assert 0.25 == pytest.approx(load.foreign_fraction)
    assert 0.1 == pytest.approx(load.stolen_fraction)


def test_tick_rounding_is_not_negative_load():
    """More own time than busy time reads as no foreign load."""
    load = foreign_load.between(_clock(0, 0, 0), _clock(1, 0.5, 0.51), 2)

    assert 0.0 == load.foreign_fraction


def test_a_spinning_neighbour_is_seen_and_an_own_child_is_not():
    """A child that was waited for is ours; one that still runs is foreign."""
    start = foreign_load.read_clock()
    subprocess.run([*SPIN, str(SPIN_SEC)], check=True, timeout=60)
    own_sec = foreign_load.read_clock().own_sec - start.own_sec
    start = foreign_load.read_clock()
    with psutil.Popen([*SPIN, "60"]) as neighbour:
        deadline = time.monotonic() + 60
        while sum(neighbour.cpu_times()[:2]) < SPIN_SEC:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        end = foreign_load.read_clock()
        neighbour.kill()
    foreign = foreign_load.between(start, end, NUM_CPUS)
    available_sec = NUM_CPUS * (end.wall_sec - start.wall_sec)

    assert own_sec > 0.9 * SPIN_SEC
    # Load of others only adds to it.
    assert foreign.foreign_fraction * available_sec > 0.5 * SPIN_SEC
    assert end.own_sec - start.own_sec < 0.5 * SPIN_SEC
