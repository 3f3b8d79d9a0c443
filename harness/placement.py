"""Which cores, threads and devices the replicas of a trial get.

One core is one logical CPU of the affinity mask, limited by the cgroup quota. The
number of cores per replica is constant over a sweep, so that a ratio between two
replica counts compares equal replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from results.records import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.topology import CpuTopology, LogicalCpu


def cores_per_replica(num_available_cores: int, replicas: Iterable[int]) -> int:
    """Returns the cores that every replica of a sweep gets.

    ``max(1, available // largest N that fits)``: the largest case that is not
    oversubscribed fills the machine. If no N fits, each replica counts one core.
    """
    fitting = [n for n in replicas if n <= num_available_cores]
    return max(1, num_available_cores // max(fitting, default=num_available_cores))


def place(
    topology: CpuTopology,
    *,
    num_replicas: int,
    cores_per_replica: int,
    device: Literal["cpu", "gpu"],
) -> Placement:
    """Returns the placement of one trial whose replicas live in one process.

    The policy, in one place:

    - The process's cpuset is ``num_replicas * cores_per_replica`` cores, or all that
      are available when there are fewer (then the trial is oversubscribed).
    - Intra-op threads: ``cores_per_replica``. One operation of a replica must not
      take a core of another replica.
    - Inter-op threads: one per replica, at most one per core of the cpuset. The
      replicas are what runs side by side.
    - Virtual CPU devices share memory bandwidth and caches: ``shared``.
    """
    slots = _ordered(topology, cores_per_replica)
    num_wanted = num_replicas * cores_per_replica
    num_available = topology.num_available_cores
    cpuset = tuple(sorted(cpu.cpu for cpu in slots[: min(num_wanted, num_available)]))
    return Placement(
        cpusets=(cpuset,),
        cores_per_replica=cores_per_replica,
        num_intra_op_threads=cores_per_replica,
        num_inter_op_threads=min(num_replicas, len(cpuset)),
        num_available_cores=num_available,
        cgroup_quota_cores=topology.quota_cores,
        is_oversubscribed=num_wanted > num_available,
        device_sharing="exclusive" if device == "gpu" else "shared",
    )


def _ordered(topology: CpuTopology, cores_per_replica: int) -> list[LogicalCpu]:
    """Returns the CPUs in the order in which replicas take them.

    While physical cores suffice, each slot is a physical core of its own. Otherwise a
    replica of two or more cores gets both threads of a core (siblings together), so
    that replicas never share one; a replica of one core takes whole physical cores
    first and second threads last.
    """
    by_place = sorted(topology.cpus, key=lambda c: (c.node, c.package, c.core, c.cpu))
    num_seen: dict[tuple[int, int], int] = {}
    sibling_rank: dict[int, int] = {}
    for cpu in by_place:
        core = (cpu.package, cpu.core)
        sibling_rank[cpu.cpu] = num_seen.get(core, 0)
        num_seen[core] = sibling_rank[cpu.cpu] + 1
    is_physical_enough = topology.num_available_cores <= topology.num_physical_cores
    if is_physical_enough or cores_per_replica == 1:
        return sorted(by_place, key=lambda c: sibling_rank[c.cpu])
    return by_place
