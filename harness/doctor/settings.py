"""Checks of settings: cores, quota, clock, memory pages, swap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.doctor.finding import Finding, bad, caution, ok
from harness.machine import machine_state

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.machine_state import CpuTopology

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
