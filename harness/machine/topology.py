"""Which CPUs this process may use: affinity, cgroup quota, cores, NUMA nodes."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

from replicator.placement import cgroups


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogicalCpu:
    """One logical CPU and its location."""

    cpu: int  # Its number, as in ``sched_setaffinity``.
    node: int = 0  # NUMA node; 0 when it cannot be read.
    package: int = 0  # Socket; 0 when it cannot be read.
    # Physical core, counted within its package; ``cpu`` when it cannot be read.
    core: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CpuTopology:
    """The CPUs that a sweep may use."""

    cpus: tuple[LogicalCpu, ...]  # The logical CPUs of the affinity mask.
    # CPU time per wall time that the cgroups grant, or None for no limit.
    quota_cores: float | None = None

    @property
    def num_available_cores(self) -> int:
        """Logical CPUs that can be busy at once: affinity, limited by the quota."""
        if self.quota_cores is None:
            return len(self.cpus)
        return max(1, min(len(self.cpus), math.floor(self.quota_cores)))

    @property
    def num_physical_cores(self) -> int:
        """Physical cores behind the logical CPUs."""
        return len({(cpu.package, cpu.core) for cpu in self.cpus})


def read_topology(
    root: Path = Path("/"), affinity: frozenset[int] | None = None
) -> CpuTopology:
    """Reads the topology of this machine, as this process may use it."""
    if affinity is None:
        affinity = frozenset(os.sched_getaffinity(0))
    return CpuTopology(
        cpus=tuple(_read_cpu(root, cpu) for cpu in sorted(affinity)),
        quota_cores=read_quota_cores(root),
    )


def _read_cpu(root: Path, cpu: int) -> LogicalCpu:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    package = _read_int(folder / "topology/physical_package_id")
    core = _read_int(folder / "topology/core_id")
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        names = []
    nodes = [int(n[4:]) for n in names if n.startswith("node") and n[4:].isdigit()]
    return LogicalCpu(
        cpu=cpu,
        node=min(nodes, default=0),
        package=0 if package is None else package,
        core=cpu if core is None else core,
    )


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def read_quota_cores(root: Path = Path("/")) -> float | None:
    """Returns the smallest CPU quota over this process's cgroups, or None.

    Version 2 has ``cpu.max``; version 1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``.
    """
    read = {1: _read_v1, 2: _read_v2}
    quotas = [read[version](path) for path, version in cgroups.folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_v1(folder: Path) -> float | None:
    quota = _read_int(folder / "cpu.cfs_quota_us")
    period = _read_int(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period
