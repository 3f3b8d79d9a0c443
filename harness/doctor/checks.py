"""Checks of the machine: cores, clock, memory, and what else runs now."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from typing import TYPE_CHECKING, Literal

from harness.machine import disturbance, machine_state
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.machine.disturbance import Disturbance
    from harness.machine.machine_state import CoreClock, CpuTopology


Level = Literal["ok", "caution", "bad"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # What was looked at.
    level: Level  # ``bad`` if timings are unusable, ``caution`` if they can be worse.
    found: str  # One line.
    advice: str = ""  # One line: what to do; empty if it is ok.


def ok(check: str, found: str) -> Finding:
    """Returns a finding that needs no action."""
    return Finding(check=check, level="ok", found=found)


def caution(check: str, found: str, advice: str) -> Finding:
    """Returns a finding that can make timings worse."""
    return Finding(check=check, level="caution", found=found, advice=advice)


def bad(check: str, found: str, advice: str) -> Finding:
    """Returns a finding that makes timings unusable."""
    return Finding(check=check, level="bad", found=found, advice=advice)


_KIB = 1024
_GIB = 2**30
LOW_MEMORY_BYTES = 4 * _GIB
"""Room for a few resident processes with TensorFlow, of about 1 GiB each."""
TOO_LITTLE_MEMORY_BYTES = _GIB


def check_quota(cpus: CpuTopology) -> Finding:
    """A quota stops all threads of a process group for the rest of a period."""
    quota = cpus.quota_cores
    num_cpus = len(cpus.cpus)
    if quota is None or quota >= num_cpus:
        return ok("CPU quota", "none" if quota is None else f"{quota:g} cores")
    usable = max(1, math.floor(quota))
    chosen = ",".join(str(cpu.cpu) for cpu in cpus.cpus[:usable])
    return caution(
        "CPU quota",
        f"{quota:g} cores for {num_cpus} CPUs: busy processes are stopped in turns",
        f"raise the quota, or use no more CPUs than it grants: taskset -c {chosen} ...",
    )


def check_smt(cpus: CpuTopology) -> Finding:
    """Two threads of one core share its units."""
    num_cpus, num_cores = len(cpus.cpus), cpus.num_physical_cores
    if num_cpus == num_cores:
        return ok("SMT", f"each of {num_cpus} CPUs is a core of its own")
    first = {(cpu.package, cpu.core): cpu.cpu for cpu in reversed(cpus.cpus)}
    chosen = ",".join(map(str, sorted(first.values())))
    return caution(
        "SMT",
        f"{num_cpus} CPUs are {num_cores} cores: two threads share a core",
        f"use one CPU of each core: taskset -c {chosen} ...",
    )


def check_governor(cpus: CpuTopology, root: Path) -> Finding:
    """Governors other than performance lower the clock between steps."""
    governors = machine_state.read_governors([cpu.cpu for cpu in cpus.cpus], root)
    found = ", ".join(governors)
    if governors in ([], ["performance"]):
        return ok("governor", found or "not visible from here")
    return caution(
        "governor",
        f"{found}: the clock depends on the load before",
        "sudo cpupower frequency-set -g performance",
    )


def check_boost(root: Path) -> Finding:
    """With boost, one busy core has a higher clock than all of them."""
    is_enabled = machine_state.read_boost(root)
    if not is_enabled:
        return ok("boost", "not visible from here" if is_enabled is None else "off")
    return caution(
        "boost",
        "on: one busy core has a higher clock than many, so efficiency looks lower",
        "compare with the compute ceiling below, or switch boost off in the firmware",
    )


def check_huge_pages(root: Path) -> Finding:
    """With ``always``, the kernel merges pages while a trial runs."""
    setting = machine_state.read_huge_pages(root)
    if setting != "always":
        return ok("huge pages", setting or "not visible from here")
    return caution(
        "huge pages",
        "always: the kernel merges pages of memory while a trial runs",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def read_memory(root: Path) -> dict[str, int]:
    """Returns the entries of ``/proc/meminfo`` in bytes; empty if it is hidden."""
    entries = {}
    for line in (machine_state.read_line(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields = value.split()
        if fields and fields[0].isdigit():
            entries[name] = int(fields[0]) * _KIB
    return entries


def check_memory(root: Path) -> Finding:
    """All cases of a relay are in memory at once."""
    memory = read_memory(root)
    free = memory.get("MemAvailable")
    if free is None:
        return ok("memory", "not visible from here")
    found = f"{free / _GIB:.1f} GiB of {memory.get('MemTotal', 0) / _GIB:.1f} available"
    if free < TOO_LITTLE_MEMORY_BYTES:
        return bad("memory", found, "end other programs: a single trial needs 1 GiB")
    if free < LOW_MEMORY_BYTES:
        advice = "end other programs, or sweep fewer cases: each needs about 1 GiB"
        return caution("memory", found, advice)
    return ok("memory", found)


def check_swap(root: Path, num_swapped_pages: int | None) -> Finding:
    """Memory in swap is read back while a trial runs."""
    memory = read_memory(root)
    used = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    found = f"{used / _GIB:.1f} GiB in use"
    advice = "end other programs, then: sudo swapoff -a && sudo swapon -a"
    if num_swapped_pages:
        return bad("swap", f"{found}, {num_swapped_pages} pages moved just now", advice)
    if used:
        return caution("swap", found, advice)
    return ok("swap", "none in use")


def read_swapped_pages(root: Path) -> int | None:
    """Returns the pages moved to or from swap since boot; None if not counted."""
    text = machine_state.read_line(root / "proc/vmstat") or ""
    counts = [
        int(value)
        for name, _, value in (line.partition(" ") for line in text.splitlines())
        if name in ("pswpin", "pswpout") and value.isdigit()
    ]
    return sum(counts) if counts else None


SPAN_SEC = 3.0
_MOST_NEIGHBOURS = 5
_NEIGHBOUR_FRACTION = 0.01
"""Of one core: less is not worth a name."""
_NOTABLE_STOLEN_FRACTION = 0.001
_MOST_LOAD_PER_CORE = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """Another process, and the CPU time that it used as a fraction of one core."""

    name: str
    fraction: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CurrentLoad:
    """What ran in a short span in which this process slept."""

    disturbance: Disturbance  # Of all cores that this process may use.
    # The busiest other processes, the busiest first; names only.
    neighbours: tuple[Neighbour, ...]
    load_average: float | None  # Over the last minute; None where it is hidden.
    # Moved to or from swap within the span; None if not counted.
    num_swapped_pages: int | None
    # Times that heat lowered the clock since boot; None if not counted.
    num_thermal: int | None
    has_thread_times: bool  # Whether run time and run delay of threads can be read.


def read_load(
    cores: Sequence[int],
    root: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> CurrentLoad:
    """Watches the cores for ``SPAN_SEC``."""
    start, pages = _read(cores, root), read_swapped_pages(root)
    processes = _read_processes(root)
    sleep(SPAN_SEC)
    end, pages_after = _read(cores, root), read_swapped_pages(root)
    span_sec = max(end.wall_sec - start.wall_sec, 1e-9)
    text = machine_state.read_line(root / "proc/loadavg")
    return CurrentLoad(
        disturbance=disturbance.between(start, end),
        neighbours=_neighbours(processes, _read_processes(root), span_sec),
        load_average=float(text.split()[0]) if text else None,
        num_swapped_pages=None
        if pages is None or pages_after is None
        else max(pages_after - pages, 0),
        num_thermal=end.throttling.num_thermal,
        has_thread_times=bool(end.threads),
    )


def _read(cores: Sequence[int], root: Path) -> CoreClock:
    return machine_state.read_core_clock(cores, (os.getpid(),), root)


def _read_processes(root: Path) -> dict[int, tuple[str, float]]:
    """Returns name and CPU time in seconds of all visible processes but this one."""
    found = {}
    for folder in (root / "proc").glob("[0-9]*"):
        text = machine_state.read_line(folder / "stat") or ""
        before, _, after = text.rpartition(")")
        fields = after.split()
        if len(fields) > machine_state.STIME and int(folder.name) != os.getpid():
            ticks = int(fields[machine_state.UTIME]) + int(fields[machine_state.STIME])
            name = printable(before.partition("(")[2])
            found[int(folder.name)] = (name, ticks * machine_state.TICK_SEC)
    return found


def _neighbours(
    start: dict[int, tuple[str, float]],
    end: dict[int, tuple[str, float]],
    span_sec: float,
) -> tuple[Neighbour, ...]:
    used: dict[str, float] = {}
    for pid, (name, total_sec) in end.items():
        before_sec = start.get(pid, ("", 0.0))[1]
        used[name] = used.get(name, 0.0) + max(total_sec - before_sec, 0.0)
    found = [Neighbour(name=n, fraction=sec / span_sec) for n, sec in used.items()]
    busy = [n for n in found if n.fraction >= _NEIGHBOUR_FRACTION]
    return tuple(sorted(busy, key=lambda n: -n.fraction)[:_MOST_NEIGHBOURS])


def check_neighbours(load: CurrentLoad, num_cores: int) -> Finding:
    """Processes that use the cores would make turns void."""
    fraction = load.disturbance.foreign_cpu_fraction
    names = ", ".join(f"{n.name} {n.fraction:.0%}" for n in load.neighbours)
    names = names.replace("%", " %")
    if fraction is None:
        return caution(
            "neighbours",
            "the kernel hides the CPU time of cores (/proc/stat)",
            "blocks disturbed by others cannot be recognized here: keep it quiet",
        )
    share = f"{fraction:.1%}".replace("%", " %")
    found = f"others use {share} of {num_cores} cores"
    by_name = f"{found}: {names} of one core" if names else found
    if disturbance.foreign_reason(load.disturbance):
        if not names:
            by_name = f"{found}, by processes that are not visible from here"
        return bad(
            "neighbours", by_name, "end them or wait: blocks above 3 % are discarded"
        )
    if names:
        return caution("neighbours", by_name, "end them if they can become busy")
    return ok("neighbours", found)


def check_load_average(load: CurrentLoad, num_cores: int) -> Finding:
    """The machine was busy a minute ago, and may be again."""
    if load.load_average is None:
        return ok("load", "not visible from here")
    found = f"{load.load_average:.2f} over the last minute"
    if load.load_average <= _MOST_LOAD_PER_CORE * num_cores:
        return ok("load", found)
    return caution("load", found, "wait until it is low, or find what runs: top")


def check_steal(load: CurrentLoad) -> Finding:
    """A hypervisor that serves other guests stops this one."""
    fraction = load.disturbance.stolen_cpu_fraction
    if fraction is None:
        return ok("steal", "not counted here")
    found = f"{fraction:.1%} of the cores".replace("%", " %")
    limit = disturbance.MAX_STOLEN_FRACTION + load.disturbance.stolen_resolution
    if fraction > limit:
        advice = "use a host without other guests: blocks above 1 % are discarded"
        return bad("steal", found, advice)
    if fraction > _NOTABLE_STOLEN_FRACTION + load.disturbance.stolen_resolution:
        return caution("steal", found, "prefer a host without other guests")
    return ok("steal", found)


def check_throttling(load: CurrentLoad) -> Finding:
    """A quota or heat stopped or slowed the cores, just now or since boot."""
    now = load.disturbance.num_throttled
    if now:
        return bad(
            "throttling",
            f"{now} times within {SPAN_SEC:g} s",
            "raise the CPU quota, or cool the machine: throttled blocks are discarded",
        )
    if load.num_thermal:
        return caution(
            "throttling",
            f"none now, {load.num_thermal} times by heat since boot",
            "check the cooling before a long sweep",
        )
    return ok("throttling", "not counted here" if now is None else "none")


def check_accounting(load: CurrentLoad) -> Finding:
    """The void rule needs the run time of threads."""
    if load.has_thread_times:
        return ok("accounting", "run time of threads in nanoseconds")
    return caution(
        "accounting",
        "no /proc/<pid>/task/<tid>/schedstat: run times in ticks, no run delay",
        "use longer blocks, or a kernel with CONFIG_SCHED_INFO",
    )
