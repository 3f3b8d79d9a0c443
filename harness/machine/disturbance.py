"""What disturbed one block of a trial, and whether the block is discarded for it.

A block is judged by the load of others on its own cores and GPUs, by throttling and by
retracing; never by its own duration: dropping slow blocks would make every case look
fast.

Counters of the kernel move in ticks of 10 ms, which is 3.3 % of a block of 0.3 s. A
difference of one tick per core can be rounding, and is allowed on top of a limit. The
fractions themselves are not corrected: their mean over blocks has no such error.

A synchronous step waits for its slowest core, and the kernel does not count which
thread ran on which core. So two limits hold: of the mean over cores, and of one core,
as if all of the others' time was on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

from harness.machine.machine_state import TICK_SEC, CoreClock
from results.records import measuring

MAX_FOREIGN_FRACTION = 0.03
MAX_OF_ONE_CORE = 0.10
"""Of one core, if all time of others was on it. An endless process takes at least half,
as much as the trial's thread gets; services of a quiet machine take some hundredths."""
BACKGROUND_FRACTION = 0.002
"""Of every core beyond that: timers and threads of the kernel, which are everywhere."""
MAX_STOLEN_FRACTION = 0.01
NUM_ROUNDING_TICKS = 1
"""Ticks per core by which a difference of two rounded-down totals can be too large."""
_ONE_CORE_SEC = 4 * 6**-0.5 * TICK_SEC
"""Four standard deviations of such a difference, whose phase is any."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """What others did to a trial in one span. None: the kernel does not count it.

    Fractions are of the CPU time of the trial's cores, 0 to 1.
    """

    foreign_cpu_fraction: float | None  # Of others, and of the kernel for them.
    foreign_resolution: float  # The fraction that can be rounding.
    stolen_cpu_fraction: float | None  # Given to other guests of the hypervisor.
    stolen_resolution: float  # The fraction that can be rounding.
    # Time for which its threads were ready but waited for a core, summed over them.
    run_delay_sec: float | None
    num_throttled: int | None  # Times that the CPU quota or heat slowed its cores.
    num_cores: int = 1  # The trial's cores.
    # What can be rounding of the sum over them, of one core. Their phases differ, so it
    # grows with the root of their number.
    one_core_resolution: float = 0.0
    gpus: tuple[measuring.GpuUse, ...] = ()  # What the trial's GPUs did; none on a CPU.


def between(start: CoreClock, end: CoreClock) -> Disturbance:
    """Returns what happened between two readings of the same trial."""

    def grown(name: str) -> float | None:
        before, now = getattr(start, name), getattr(end, name)
        return None if before is None or now is None else max(now - before, 0)

    wall_sec = max(end.wall_sec - start.wall_sec, 1e-9)
    available_sec = wall_sec * end.num_cores
    tick_sec = NUM_ROUNDING_TICKS * TICK_SEC
    idle_sec, stolen_sec = grown("idle_sec"), grown("stolen_sec") or 0.0
    has_threads = end.process_source == "schedstat"
    foreign, resolution = None, 0.0
    if idle_sec is not None and end.process_sec:
        totals = end.process_sec.items()
        own_sec = sum(total - start.process_sec.get(pid, 0.0) for pid, total in totals)
        own_rounding_sec = _TICKS_PER_PROCESS * TICK_SEC * len(totals)
        if has_threads:  # those that ended are only in the totals of their process
            own_sec = max(_thread_growth(start, end, _RUN), own_sec - own_rounding_sec)
            own_rounding_sec = 0.0
        interrupt_sec = grown("interrupt_sec") or 0.0
        used_sec = available_sec - idle_sec - stolen_sec - interrupt_sec
        rounding_sec, run_sec = tick_sec * end.num_cores, grown("run_sec")
        # In a container the exact counter lacks what runs outside: it is too small.
        if run_sec is not None and abs(run_sec - used_sec) <= rounding_sec:
            used_sec, rounding_sec = run_sec, 0.0
        # The reading at the start is itself within the span, and on one of these cores.
        foreign = _fraction(used_sec - own_sec - start.reading_sec, available_sec)
        resolution = (rounding_sec + own_rounding_sec) / available_sec
    throttled = [grown(name) for name in ("num_quota", "num_thermal")]
    known = [count for count in throttled if count is not None]
    return Disturbance(
        foreign_cpu_fraction=foreign,
        foreign_resolution=resolution,
        num_cores=end.num_cores,
        one_core_resolution=min(
            math.sqrt(end.num_cores) * _ONE_CORE_SEC / wall_sec,
            resolution * end.num_cores,
        ),
        stolen_cpu_fraction=None
        if idle_sec is None
        else _fraction(stolen_sec, available_sec),
        stolen_resolution=tick_sec / wall_sec,
        run_delay_sec=_thread_growth(start, end, _DELAY) if has_threads else None,
        num_throttled=int(sum(known)) if known else None,
    )


def foreign_reason(disturbance: Disturbance) -> str:
    """Returns how others had too much of the cores; empty if they had not."""
    foreign, num_cores = disturbance.foreign_cpu_fraction or 0.0, disturbance.num_cores
    if foreign > MAX_FOREIGN_FRACTION + disturbance.foreign_resolution:
        return (
            f"other processes used {foreign:.0%} of its cores"
            f" (limit {MAX_FOREIGN_FRACTION:.0%})"
        ).replace("%", " %")
    # How much of one core others may have had, if they were all on it.
    limit = MAX_OF_ONE_CORE + BACKGROUND_FRACTION * num_cores
    if foreign * num_cores > limit + disturbance.one_core_resolution:
        return (
            f"other processes used {foreign * num_cores:.0%} of one core of its"
            f" {num_cores}, if all on one (limit {limit:.0%})"
        ).replace("%", " %")
    return ""


def discard_reason(disturbance: Disturbance, num_retraces: int) -> str:
    """Returns why a block does not count, as one phrase; empty if it does."""
    if reason := foreign_reason(disturbance):
        return reason
    stolen = disturbance.stolen_cpu_fraction or 0.0
    if stolen > MAX_STOLEN_FRACTION + disturbance.stolen_resolution:
        return (
            f"the hypervisor gave {stolen:.0%} of its cores to other guests (limit"
            f" {MAX_STOLEN_FRACTION:.0%})"
        ).replace("%", " %")
    if disturbance.num_throttled:
        return f"its cores were throttled {_times(disturbance.num_throttled)}"
    if reason := measuring.discard_reason(disturbance.gpus):
        return reason
    if num_retraces:
        return f"its step function was retraced {_times(num_retraces)}"
    return ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_TICKS_PER_PROCESS = 2 * NUM_ROUNDING_TICKS
"""User and system time are rounded down separately."""
_RUN, _DELAY = 0, 1
"""Of the times of a thread."""


def _thread_growth(start: CoreClock, end: CoreClock, which: int) -> float:
    total_sec = 0.0
    for key, times in end.threads.items():
        now_sec = times[which]
        before_sec = start.threads.get(key, (0.0, 0.0))[which]
        # A smaller total is of another thread, which got the id of one that ended.
        total_sec += now_sec - before_sec if now_sec >= before_sec else now_sec
    return total_sec


def _fraction(part_sec: float, available_sec: float) -> float:
    return min(max(part_sec / available_sec, 0.0), 1.0)


# The canary: arithmetic on one core of the trial. If it takes longer, the machine was
# disturbed or throttled.

_SIZE = 96
_NUM_PRODUCTS = 900


def make_product() -> Callable[[], object]:
    """Returns a function that multiplies small matrices; they stay in the cache."""
    import numpy as np

    matrix = np.linspace(0.0, 1.0, _SIZE * _SIZE, dtype=np.float32)
    matrix = matrix.reshape(_SIZE, _SIZE)
    # optimize=False makes numpy use its own loop: no BLAS, no threads.
    return functools.partial(np.einsum, "ij,jk->ik", matrix, matrix, optimize=False)


def rate(kernel: Callable[[], object], work: float, duration_sec: float) -> float:
    """Runs a kernel for at least ``duration_sec`` and returns work per second."""
    num_calls = 0
    start = now = time.perf_counter()
    while now - start < duration_sec:
        kernel()
        num_calls += 1
        now = time.perf_counter()
    return num_calls * work / (now - start)


def run_canary(core: int | None = None) -> float:
    """Returns the seconds the fixed computation takes on ``core``."""
    before = os.sched_getaffinity(0)
    if core is not None:
        # The core was taken away since planning: run unpinned rather than fail.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})
    try:
        multiply = make_product()
        multiply()
        start = time.perf_counter()
        for _ in range(_NUM_PRODUCTS):
            multiply()
        return time.perf_counter() - start
    finally:
        os.sched_setaffinity(0, before)


# Of a trial that runs alone, the load over all of it is recorded.


class CpuClock(NamedTuple):
    wall_sec: float  # Wall clock.
    busy_sec: float  # All logical CPUs, all processes, without idle time and steal.
    stolen_sec: float  # All logical CPUs, given to other guests of the hypervisor.
    own_sec: float  # This process and the children that it has waited for.


def read_clock() -> CpuClock:
    times = psutil.cpu_times()
    # guest time is part of user time on Linux.
    busy = ("user", "nice", "system", "irq", "softirq")
    return CpuClock(
        wall_sec=time.monotonic(),
        busy_sec=sum(getattr(times, name, 0.0) for name in busy),
        stolen_sec=getattr(times, "steal", 0.0),
        own_sec=sum(os.times()[:4]),
    )


def foreign_since(start: CpuClock, num_cpus: int) -> dict[str, float]:
    """Returns the shares of all CPU time that others had, as a record names them."""
    end = read_clock()
    available_sec = max((end.wall_sec - start.wall_sec) * num_cpus, 1e-9)
    busy_sec, own_sec = end.busy_sec - start.busy_sec, end.own_sec - start.own_sec
    stolen_sec = end.stolen_sec - start.stolen_sec
    return {
        "foreign_cpu_fraction": _fraction(busy_sec - own_sec, available_sec),
        "stolen_cpu_fraction": _fraction(stolen_sec, available_sec),
    }
