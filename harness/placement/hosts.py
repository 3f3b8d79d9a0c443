"""Spreads the processes of a trial over hosts, and places them on each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from harness.placement import allocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.machine.machine_state import CpuTopology
    from harness.placement.processes import Member, Processes
    from results.records.models import Placement, TrialSpec


def members_per_host(num_members: int, num_hosts: int) -> int:
    """Returns how many consecutive members a host gets, as evenly as blocks allow."""
    return max(1, -(-num_members // num_hosts))


def place(
    topology: CpuTopology,
    spec: TrialSpec,
    processes: Processes,
    *,
    num_hosts: int = 1,
    gpu_nodes: Sequence[int | None] = (),
) -> Placement:
    """Returns the placement of a trial whose hosts are all the same."""
    block = members_per_host(len(processes.members), num_hosts)
    if block >= len(processes.members):
        return _on_one(topology, spec, processes, spec.num_replicas, gpu_nodes)
    members = processes.members
    parts = [
        _on_one(
            topology,
            spec,
            _numbered(processes, members[first : first + block]),
            _num_replicas(processes, members[first : first + block]) or 1,
            gpu_nodes,
        )
        for first in range(0, len(members), block)
    ]
    return parts[0].model_copy(
        update={
            "cpusets": tuple(cores for part in parts for cores in part.cpusets),
            "is_oversubscribed": any(part.is_oversubscribed for part in parts),
        }
    )


def num_replicas_on_first(
    processes: Processes, num_replicas: int, num_hosts: int
) -> int:
    """Returns how many replicas compute on the first host, and so need its GPUs."""
    if not processes.are_several:
        return num_replicas
    block = members_per_host(len(processes.members), num_hosts)
    return _num_replicas(processes, processes.members[:block])


def _num_replicas(processes: Processes, members: Sequence[Member]) -> int:
    return processes.replicas_per_worker * sum(map(processes.runs_replicas, members))


def _on_one(
    topology: CpuTopology,
    spec: TrialSpec,
    processes: Processes,
    num_replicas: int,
    gpu_nodes: Sequence[int | None],
) -> Placement:
    return allocation.place(
        topology,
        num_replicas=num_replicas,
        cores_per_replica=spec.cores_per_replica,
        devices_per_replica=spec.devices_per_replica,
        device=spec.device,
        processes=processes,
        gpu_nodes=gpu_nodes,
    )


def _numbered(processes: Processes, members: Sequence[Member]) -> Processes:
    """Returns some of the processes, numbered on their own: cores are their host's."""
    counts: dict[str, int] = {}
    own = []
    for kind, _ in members:
        own.append((kind, counts.get(kind, 0)))
        counts[kind] = counts.get(kind, 0) + 1
    return dataclasses.replace(
        processes, members=tuple(own), num_ranks=min(processes.num_ranks, len(own))
    )
