"""What the kernel has counted so far: for a trial's cores, and for its processes.

Two readings around a turn give its disturbance (``harness/machine/disturbance.py``).

The time that a core was not idle is wall time minus its idle time. The kernel measures
idle time and steal, and shows them in ticks; the columns of busy time are samples, one
per tick, and over 0.3 s too inexact. Under version 1 of the control groups there is
also the run time of each core in nanoseconds (``cpuacct.usage_percpu``).

Interrupts: some kernels take them out of the time of the process that they interrupted
(``CONFIG_IRQ_TIME_ACCOUNTING``). There, the trial's own network traffic would appear
as time of others, so interrupts are not counted as such. These kernels are recognized
by an ``irq`` column above 0: kernels that sample never find an interrupt in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from replicator.placement import cgroups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


TICK_SEC = 1.0 / os.sysconf("SC_CLK_TCK")
"""The unit of ``/proc/stat`` and ``/proc/<pid>/stat``: 10 ms on nearly all systems."""

ProcessSource = Literal["schedstat", "stat"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoreTimes:
    """Running totals of some cores, in seconds, summed over them."""

    idle_sec: float  # With nothing to run, or waiting for a disk.
    stolen_sec: float  # Given to other guests of the hypervisor.
    # In interrupts, where the kernel counts them apart from processes.
    interrupt_sec: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ThreadTimes:
    """Running totals of one thread, in seconds: on a core, and ready but waiting."""

    run_sec: float
    delay_sec: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Throttling:
    """Running totals of throttling; None where the kernel does not count it."""

    # Periods in which the CPU quota of a control group stopped processes.
    num_quota: int | None
    quota_sec: float | None  # The time they were stopped.
    # Times that a core, or its package, lowered its clock because of heat.
    num_thermal: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CoreClock:
    """One reading."""

    wall_sec: float  # Monotonic clock.
    num_cores: int  # The cores of the trial.
    # Their totals; None where the kernel does not show all of them.
    cores: CoreTimes | None
    # Time for which they ran processes, exact; None where it is not counted.
    run_sec: float | None
    # Totals of the trial's threads, by process id and thread id.
    threads: Mapping[tuple[int, int], ThreadTimes]
    # CPU time of each of its processes, in ticks, with ended threads.
    process_sec: Mapping[int, float]
    process_source: ProcessSource  # What the CPU time of its processes is taken from.
    throttling: Throttling  # Totals of throttling.
    # CPU time that this reading itself took after ``cores`` was read.
    reading_sec: float


def read(
    cores: Sequence[int], pids: Sequence[int], root: Path = Path("/")
) -> CoreClock:
    """Reads the totals now; takes 0.5 ms and 15 us for each thread.

    Processes and threads that end meanwhile are left out.
    """
    wall_sec = time.monotonic()
    core_times = _read_cores(cores, root)
    run_sec = _read_run_sec(cores, root)
    start_sec = time.thread_time()
    threads: dict[tuple[int, int], ThreadTimes] = {}
    process_sec: dict[int, float] = {}
    for pid in pids:
        threads.update(_read_threads(pid, root))
        total_sec = _read_process_sec(pid, root)
        if total_sec is not None:
            process_sec[pid] = total_sec
    return CoreClock(
        wall_sec=wall_sec,
        num_cores=len(cores),
        cores=core_times,
        run_sec=run_sec,
        threads=threads,
        process_sec=process_sec,
        process_source="schedstat" if threads or not process_sec else "stat",
        throttling=_read_throttling(cores, root),
        reading_sec=time.thread_time() - start_sec,
    )


def _read_cores(cores: Sequence[int], root: Path) -> CoreTimes | None:
    rows = {}
    for line in _read_text(root / "proc/stat").splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            break  # the counters of the cores are the first lines
        rows[name] = [int(tick) * TICK_SEC for tick in ticks]
    found = [rows[f"cpu{cpu}"] for cpu in cores if f"cpu{cpu}" in rows]
    if not found or len(found) < len(cores) or len(found[0]) <= _STEAL:
        return None
    return CoreTimes(
        idle_sec=sum(row[_IDLE] + row[_IOWAIT] for row in found),
        stolen_sec=sum(row[_STEAL] for row in found),
        interrupt_sec=sum(
            row[_IRQ] + row[_SOFTIRQ] if row[_IRQ] else 0.0 for row in found
        ),
    )


# Columns of /proc/stat after the name: user, nice, system, then these.
_IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = 3, 4, 5, 6, 7


def _read_run_sec(cores: Sequence[int], root: Path) -> float | None:
    """Reads what the topmost visible control group ran on the cores.

    In a container that is the container alone, which cannot be seen here:
    ``disturbance.between`` compares it with the idle time.
    """
    for folder in ("cpuacct", "cpu,cpuacct"):
        path = root / "sys/fs/cgroup" / folder / "cpuacct.usage_percpu"
        fields = _read_text(path).split()
        if fields and max(cores) < len(fields):
            return sum(int(fields[cpu]) for cpu in cores) / 1e9
    return None


def _read_threads(
    pid: int, root: Path
) -> Iterator[tuple[tuple[int, int], ThreadTimes]]:
    with contextlib.suppress(OSError), os.scandir(root / f"proc/{pid}/task") as tasks:
        for task in tasks:
            fields = _read_text(f"{task.path}/schedstat").split()
            if len(fields) >= 2:  # noqa: PLR2004 - run time and delay
                run_ns, delay_ns = int(fields[0]), int(fields[1])
                times = ThreadTimes(run_sec=run_ns / 1e9, delay_sec=delay_ns / 1e9)
                yield (pid, int(task.name)), times


def _read_process_sec(pid: int, root: Path) -> float | None:
    # The name, in parentheses, can contain anything.
    _, _, text = _read_text(root / f"proc/{pid}/stat").rpartition(")")
    fields = text.split()
    if len(fields) <= STIME:
        return None
    return (int(fields[UTIME]) + int(fields[STIME])) * TICK_SEC


# Fields of /proc/<pid>/stat after the name.
UTIME, STIME = 11, 12


def _read_throttling(cores: Iterable[int], root: Path) -> Throttling:
    quotas = {}
    for folder, version in cgroups.folders("cpu", root):
        words = _read_text(folder / "cpu.stat").split()
        fields = dict(zip(words[::2], words[1::2], strict=False))
        if "nr_throttled" in fields:
            # Version 1 counts in nanoseconds, version 2 in microseconds.
            name, unit = _THROTTLED[version]
            stopped_sec = int(fields.get(name, 0)) * unit
            quotas[folder.resolve()] = (int(fields["nr_throttled"]), stopped_sec)
    counts = [
        int(text)
        for cpu in cores
        for kind in ("core", "package")
        for text in _read_text(
            root / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
            f"/{kind}_throttle_count"
        ).split()
    ]
    return Throttling(
        num_quota=sum(n for n, _ in quotas.values()) if quotas else None,
        quota_sec=sum(sec for _, sec in quotas.values()) if quotas else None,
        num_thermal=sum(counts) if counts else None,
    )


_THROTTLED = {1: ("throttled_time", 1e-9), 2: ("throttled_usec", 1e-6)}


def _read_text(path: Path | str) -> str:
    """Returns the text of a file of the kernel; empty where it does not exist.

    The processes of a trial have hundreds of threads: without buffers this takes a
    third of the time.
    """
    # ESRCH, a ProcessLookupError: the process ended between opening and reading.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, _READ_SIZE):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""


_READ_SIZE = 1 << 16
