"""CPU time that other processes used while a trial ran.

A benchmark on a busy machine also measures the other processes. The share of CPU time
that neither the trial nor the harness used is recorded with every trial, and so is the
time that a hypervisor gave to other guests (steal), so that the report can show both.
"""

from __future__ import annotations

import dataclasses
import resource
import time

import psutil


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuClock:
    """Running totals of CPU time in seconds."""

    wall_sec: float  # Wall clock.
    busy_sec: float  # All logical CPUs, all processes, without idle time and steal.
    stolen_sec: float  # All logical CPUs, given to other guests of the hypervisor.
    own_sec: float  # This process and the children that it has waited for.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Shares, 0 to 1, of the CPU time of all logical CPUs over a span."""

    foreign_fraction: float  # Used by other processes.
    stolen_fraction: float  # Given to other guests of the hypervisor.


def read_clock() -> CpuClock:
    """Reads the totals now."""
    times = psutil.cpu_times()
    usages = [resource.getrusage(who) for who in _OWN]
    return CpuClock(
        wall_sec=time.monotonic(),
        # guest time is part of user time on Linux.
        busy_sec=times.user
        + times.nice
        + times.system
        + getattr(times, "irq", 0.0)
        + getattr(times, "softirq", 0.0),
        stolen_sec=getattr(times, "steal", 0.0),
        own_sec=sum(usage.ru_utime + usage.ru_stime for usage in usages),
    )


def between(start: CpuClock, end: CpuClock, num_cpus: int) -> Load:
    """Returns the shares over a span."""
    available_sec = max((end.wall_sec - start.wall_sec) * num_cpus, 1e-9)
    busy_sec = end.busy_sec - start.busy_sec
    own_sec = end.own_sec - start.own_sec
    # The kernel counts in ticks, so the result on a quiet machine can be slightly < 0.
    foreign_sec = max(busy_sec - own_sec, 0.0)
    return Load(
        foreign_fraction=min(foreign_sec / available_sec, 1.0),
        stolen_fraction=min(
            max(end.stolen_sec - start.stolen_sec, 0.0) / available_sec, 1.0
        ),
    )


_OWN = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
