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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from harness.machine.machine_state import CPU_FOLDER, read_text
from replicator.core import cgroups
from results.records import measuring

TICK_SEC = 1.0 / os.sysconf("SC_CLK_TCK")
"""The unit of ``/proc/stat`` and ``/proc/<pid>/stat``: 10 ms on nearly all systems."""
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

    Fractions are of the CPU time of the trial's cores, 0 to 1. A rule of yours for what
    does not count, ``run_overrides={"discard_reason": ...}``, is given this and the
    number of times that the step was traced again, as ``discard_reason`` is.
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

    def foreign_reason(self) -> str:
        """Returns how others had too much of the cores; empty if they had not."""
        foreign, num_cores = self.foreign_cpu_fraction or 0.0, self.num_cores
        if foreign > MAX_FOREIGN_FRACTION + self.foreign_resolution:
            return (
                f"other processes used {foreign:.0%} of its cores"
                f" (limit {MAX_FOREIGN_FRACTION:.0%})"
            ).replace("%", " %")
        # How much of one core others may have had, if they were all on it.
        limit = MAX_OF_ONE_CORE + BACKGROUND_FRACTION * num_cores
        if foreign * num_cores > limit + self.one_core_resolution:
            return (
                f"other processes used {foreign * num_cores:.0%} of one core of its"
                f" {num_cores}, if all on one (limit {limit:.0%})"
            ).replace("%", " %")
        return ""

    def discard_reason(self, num_retraces: int = 0) -> str:
        """Returns why a block does not count, as one phrase; empty if it does."""
        if reason := self.foreign_reason():
            return reason
        stolen = self.stolen_cpu_fraction or 0.0
        if stolen > MAX_STOLEN_FRACTION + self.stolen_resolution:
            return (
                f"the hypervisor gave {stolen:.0%} of its cores to other guests (limit"
                f" {MAX_STOLEN_FRACTION:.0%})"
            ).replace("%", " %")
        if self.num_throttled:
            return f"its cores were throttled {_times(self.num_throttled)}"
        if reason := measuring.discard_reason(self.gpus):
            return reason
        if num_retraces:
            return f"its step function was retraced {_times(num_retraces)}"
        return ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# Two readings around a block give its disturbance.
#
# The time that a core was not idle is wall time minus its idle time, which the kernel
# measures; the columns of busy time are samples, one per tick, and over 0.3 s too
# inexact. Under version 1 of the control groups there is also the run time of each core
# in nanoseconds (``cpuacct.usage_percpu``).
#
# Some kernels take interrupts out of the time of the process that they interrupted
# (``CONFIG_IRQ_TIME_ACCOUNTING``). There, the trial's own network traffic would appear
# as time of others, so interrupts are not counted. These kernels are recognized by an
# ``irq`` column above 0: kernels that sample never find an interrupt in it.

_TICKS_PER_PROCESS = 2 * NUM_ROUNDING_TICKS
"""User and system time are rounded down separately."""
_RUN, _DELAY = 0, 1
"""Of the times of a thread."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoreClock:
    """One reading of what the kernel counts: running totals, in seconds."""

    wall_sec: float  # Monotonic clock.
    num_cores: int  # The cores of the trial.
    # Summed over them, also of those that wait for a disk; None where it is not shown.
    idle_sec: float | None
    stolen_sec: float = 0.0  # Given to other guests of the hypervisor.
    interrupt_sec: float = 0.0  # Where the kernel counts it apart from processes.
    run_sec: float | None  # Running processes, exact; None where it is not counted.
    # The trial's threads, by ids of process and thread: on a core, ready but waiting.
    threads: Mapping[tuple[int, int], tuple[float, float]]
    # CPU time of each of its processes, in ticks, with ended threads.
    process_sec: Mapping[int, float]
    # What the CPU time of its processes is taken from.
    process_source: Literal["schedstat", "stat"]
    # Periods in which the CPU quota stopped processes, and times that a core or its
    # package lowered its clock because of heat; None where it is not counted.
    num_quota: int | None
    num_thermal: int | None
    reading_sec: float  # CPU time of this reading after the cores were read.

    def load_until(self, end: CoreClock) -> Disturbance:
        """Returns what others did from this reading to a later one, of the same."""
        start = self

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
            before_sec = start.process_sec
            own_sec = sum(total - before_sec.get(pid, 0.0) for pid, total in totals)
            own_rounding_sec = _TICKS_PER_PROCESS * TICK_SEC * len(totals)
            if has_threads:  # those that ended are only in the totals of their process
                own_sec -= own_rounding_sec
                own_sec = max(_thread_growth(start, end, _RUN), own_sec)
                own_rounding_sec = 0.0
            interrupt_sec = grown("interrupt_sec") or 0.0
            used_sec = available_sec - idle_sec - stolen_sec - interrupt_sec
            rounding_sec, run_sec = tick_sec * end.num_cores, grown("run_sec")
            # In a container the exact counter lacks what runs outside: it is too small.
            if run_sec is not None and abs(run_sec - used_sec) <= rounding_sec:
                used_sec, rounding_sec = run_sec, 0.0
            # The reading at the start is within the span, and on one of these cores.
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


def read_core_clock(
    cores: Sequence[int], pids: Sequence[int], root: Path = Path("/")
) -> CoreClock:
    """Reads what the kernel has counted so far, around a span that is to be judged.

    The harness repeats what others disturbed, and so can a benchmark of your own:

        start = harness.read_core_clock(cores, pids)
        ...  # what is timed
        load = start.load_until(harness.read_core_clock(cores, pids))
        if reason := load.discard_reason(): ...

    Args:
        cores: The logical CPUs that are yours, as in ``os.sched_setaffinity``.
        pids: Your processes, which are those of nobody else; one that ends is left out.
        root: The folder with ``proc`` and ``sys``.

    Returns:
        A reading. It takes 0.5 ms, and 15 us for each thread.
    """
    wall_sec = time.monotonic()
    of_cores = _read_cores(cores, root)
    run_sec = _read_run_sec(cores, root)
    start_sec = time.thread_time()
    threads: dict[tuple[int, int], tuple[float, float]] = {}
    totals_sec: dict[int, float] = {}
    for pid in pids:
        folder = root / f"proc/{pid}/task"
        with contextlib.suppress(OSError), os.scandir(folder) as tasks:
            for task in tasks:
                words = read_text(f"{task.path}/schedstat").split()
                if len(words) >= 2:  # noqa: PLR2004 - run time and delay
                    times = int(words[0]) / 1e9, int(words[1]) / 1e9
                    threads[pid, int(task.name)] = times
        # The name, in parentheses, can contain anything.
        words = read_text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
        if len(words) > _STIME:
            totals_sec[pid] = (int(words[_UTIME]) + int(words[_STIME])) * TICK_SEC
    return CoreClock(
        wall_sec=wall_sec,
        num_cores=len(cores),
        **of_cores,
        run_sec=run_sec,
        threads=threads,
        process_sec=totals_sec,
        process_source="schedstat" if threads or not totals_sec else "stat",
        **_read_throttling(cores, root),
        reading_sec=time.thread_time() - start_sec,
    )


def _read_cores(cores: Sequence[int], root: Path) -> dict[str, Any]:
    rows = {}
    for line in read_text(root / "proc/stat").splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            break  # the counters of the cores are the first lines
        rows[name] = [int(tick) * TICK_SEC for tick in ticks]
    of_cores = [rows[f"cpu{cpu}"] for cpu in cores if f"cpu{cpu}" in rows]
    if not of_cores or len(of_cores) < len(cores) or len(of_cores[0]) <= _STEAL:
        return {"idle_sec": None}
    return {
        "idle_sec": sum(row[_IDLE] + row[_IOWAIT] for row in of_cores),
        "stolen_sec": sum(row[_STEAL] for row in of_cores),
        "interrupt_sec": sum(
            row[_IRQ] + row[_SOFTIRQ] for row in of_cores if row[_IRQ]
        ),
    }


# Columns of /proc/stat after the name: user, nice, system, then these.
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = 3, 4, 5, 6, 7


def _read_run_sec(cores: Sequence[int], root: Path) -> float | None:
    """Reads what the topmost visible control group ran; in a container, that alone."""
    for folder in ("cpuacct", "cpu,cpuacct"):
        path = root / "sys/fs/cgroup" / folder / "cpuacct.usage_percpu"
        fields = read_text(path).split()
        if fields and max(cores) < len(fields):
            return sum(int(fields[cpu]) for cpu in cores) / 1e9
    return None


# Fields of /proc/<pid>/stat after the name.
_UTIME, _STIME = 11, 12


def _read_throttling(cores: Iterable[int], root: Path) -> dict[str, Any]:
    quotas = {}
    for folder, _ in cgroups.folders("cpu", root):
        words = read_text(folder / "cpu.stat").split()
        fields = dict(zip(words[::2], words[1::2], strict=False))
        if "nr_throttled" in fields:
            quotas[folder.resolve()] = int(fields["nr_throttled"])
    counts = [
        int(text)
        for cpu in cores
        for kind in ("core", "package")
        for text in read_text(
            root / CPU_FOLDER / f"cpu{cpu}/thermal_throttle/{kind}_throttle_count"
        ).split()
    ]
    return {
        "num_quota": sum(quotas.values()) if quotas else None,
        "num_thermal": sum(counts) if counts else None,
    }


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
