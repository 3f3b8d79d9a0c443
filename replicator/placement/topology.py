"""Topology: the placement of the replicas of one program, and the memory they share.

A *program* is one linked graph, run by one client. In-graph replication has one program
for all replicas of the job, local or remote; between-graph replication has one in every
worker process, connected by TensorFlow's collective ops (Buchlovsky et al. 2019,
figure 1). The engine takes all facts about placement from here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replicator.placement import devices as device_lib

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The replicas of one program. Replicas are counted from 0 within the program.

    Attributes:
      devices: Full device names, by replica of this program, then by logical device.
      memories: By replica, the first replica whose devices read the same memory.
      primaries: By replica, the replica whose copy of mirrored variables it uses; a
        replica that keeps its own copy is its own primary.
      num_replicas: Replicas in the whole job.
      first_replica_id: Id in the job of this program's replica 0.
      num_programs: Programs of the job that run concurrently.
      program_id: Index of this program.
      has_virtual_gpus: Whether some of its GPUs are parts of one physical GPU, which
        NCCL refuses.
    """

    devices: tuple[tuple[str, ...], ...]
    memories: tuple[int, ...]
    primaries: tuple[int, ...]
    num_replicas: int
    first_replica_id: int = 0
    num_programs: int = 1
    program_id: int = 0
    has_virtual_gpus: bool = False

    @property
    def num_local_replicas(self) -> int:
        """Replicas of this program."""
        return len(self.devices)

    @property
    def num_logical_devices(self) -> int:
        """Devices that one replica is split over."""
        return len(self.devices[0])

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """The first device of each replica, which receives its inputs."""
        return tuple(devices[0] for devices in self.devices)

    @property
    def is_shared(self) -> bool:
        """Whether all replicas of this program use one copy of mirrored variables."""
        return not any(self.primaries)

    @property
    def communicates(self) -> bool:
        """Whether collectives move data from one memory to another."""
        return self.num_programs > 1 or len(set(self.memories)) > 1

    @property
    def spans_processes(self) -> bool:
        """Whether the replicas of this program are in several processes."""
        return len(set(map(device_lib.process, self.replica_devices))) > 1

    @property
    def orders_transfers(self) -> bool:
        """Whether the order of transfers matters: some wait, or are long on the way."""
        return self.num_programs > 1 or self.spans_processes or self.has_own_gpus

    @property
    def has_own_gpus(self) -> bool:
        """Whether every replica has a logical GPU of its own in this process."""
        names = self.replica_devices
        is_distinct = len(set(names)) == len(names)
        are_gpus = all(map(device_lib.is_gpu, names))
        return are_gpus and is_distinct and not self.spans_processes

    def leaders(self, owner: int) -> tuple[int, ...]:
        """By replica, the one through whose device its process sends to an owner.

        In one process each memory stands for itself. In several, the memories of each
        are combined first, in the place that the owner has in its own.
        """
        if not self.spans_processes:
            return self.memories
        names = [device_lib.process(name) for name in self.replica_devices]
        found: dict[str, list[int]] = {}
        for memory in dict.fromkeys(self.memories):
            found.setdefault(names[memory], []).append(memory)
        place = found[names[owner]].index(self.memories[owner])
        return tuple(found[name][place % len(found[name])] for name in names)

    def at(self, logical_device: int) -> Topology:
        """The same replicas on one of their logical devices, as if they had no other.

        Each still has the memory of its first device: copies are a replica's.
        """
        if self.num_logical_devices == 1:
            return self
        devices = tuple((names[logical_device],) for names in self.devices)
        return dataclasses.replace(self, devices=devices)

    def replica_id(self, local: int) -> int:
        """Id in the job of a replica of this program."""
        return self.first_replica_id + local

    def logical_device_of(self, device: str) -> int:
        """Index of a device among the logical devices of replica 0; 0 by default."""
        mine = self.devices[0]
        return mine.index(device) if device in mine else 0

    def members(self, memory: int) -> tuple[int, ...]:
        """Replicas that read the same memory as replica ``memory``."""
        return tuple(r for r, m in enumerate(self.memories) if m == memory)


def make_topology(
    devices: Sequence[Sequence[str]],
    *,
    is_mirrored: bool = False,
    num_replicas: int | None = None,
    first_replica_id: int = 0,
    num_programs: int = 1,
    program_id: int = 0,
    has_virtual_gpus: bool = False,
) -> Topology:
    """Builds the topology: determines which replicas share memory.

    Args:
      devices: Full device names, by replica, then by logical device.
      is_mirrored: Whether each replica keeps its own copy of mirrored variables even if
        it could share one.
      num_replicas: Replicas in the whole job; by default those of this program.
      first_replica_id: Id in the job of the first replica here.
      num_programs: Programs of the job.
      program_id: Index of this program.
      has_virtual_gpus: Whether some of its GPUs are parts of one physical GPU.

    Returns:
      The topology.
    """
    places = [tuple(map(device_lib.memory, names)) for names in devices]
    memories = tuple(places.index(place) for place in places)
    return Topology(
        devices=tuple(tuple(names) for names in devices),
        memories=memories,
        primaries=tuple(range(len(places))) if is_mirrored else memories,
        num_replicas=len(places) if num_replicas is None else num_replicas,
        first_replica_id=first_replica_id,
        num_programs=num_programs,
        program_id=program_id,
        has_virtual_gpus=has_virtual_gpus,
    )
