"""The share of the machine that others used is told apart from the trial's own."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time

import pytest

from harness import foreign_load
from harness.foreign_load import CpuClock

SPIN_SEC = 0.6
# More than the machine has, so that no share is cut off at 1.
NUM_CPUS = 64


def _clock(wall: float, busy: float, own: float, stolen: float = 0.0) -> CpuClock:
    return CpuClock(wall_sec=wall, busy_sec=busy, stolen_sec=stolen, own_sec=own)


def test_foreign_time_is_what_is_busy_and_not_ours() -> None:
    """10 s on 2 CPUs with 12 s busy, 7 s of them ours: 5 of 20 s are foreign."""
    load = foreign_load.between(_clock(0, 100, 50), _clock(10, 112, 57, 2), 2)

    assert 0.25 == pytest.approx(load.foreign_fraction)
    assert 0.1 == pytest.approx(load.stolen_fraction)


def test_tick_rounding_is_not_negative_load() -> None:
    """More own time than busy time reads as no foreign load."""
    load = foreign_load.between(_clock(0, 0, 0), _clock(1, 0.5, 0.51), 2)

    assert 0.0 == load.foreign_fraction


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_spinning_neighbour_is_seen_and_an_own_child_is_not() -> None:
    """A child that was waited for is ours; one that still runs is foreign."""
    start = foreign_load.read_clock()
    code = (
        f"import time; e = time.monotonic() + {SPIN_SEC}\nwhile time.monotonic() < e: 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    own = foreign_load.between(start, foreign_load.read_clock(), NUM_CPUS)
    neighbour = multiprocessing.get_context("fork").Process(target=_spin, args=(30,))
    neighbour.start()
    try:
        start = foreign_load.read_clock()
        time.sleep(SPIN_SEC)
        foreign = foreign_load.between(start, foreign_load.read_clock(), NUM_CPUS)
    finally:
        neighbour.kill()
        neighbour.join()

    # The spinning neighbour alone is most of one CPU; other load only adds to it.
    assert foreign.foreign_fraction * NUM_CPUS > 0.5
    assert foreign.foreign_fraction > own.foreign_fraction
