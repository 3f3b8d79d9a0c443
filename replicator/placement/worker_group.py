"""Groups of collectives: who takes part in the same ones, and their keys.

A *worker group* has one device of each worker, a *flat group* one device of each
replica of the job, in one process or in several.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.placement import devices as device_lib

if TYPE_CHECKING:
    from replicator.placement.topology import Topology

# Group of the first CPU device of every worker.
CPU_GROUP_KEY = 1
# Groups of a whole job begin here, beyond what stock strategies of the process use.
FLAT_GROUP_KEY = 1 << 24
# Group of the GPU of replica 0 of every worker, for values of variables.
GPU_GROUP_KEY = FLAT_GROUP_KEY - 1


def place_group_key(device: str) -> int:
    """The key of a worker group: devices of one place in all workers."""
    spec = tf.DeviceSpec.from_string(device)
    kind = 0 if device_lib.is_cpu(device) else 1
    return CPU_GROUP_KEY + 2 * int(spec.device_index or 0) + kind


class Keys:
    """Draws the instance keys of collectives.

    Attributes:
      value: The next key; identical on all workers that have run the same program.
    """

    def __init__(self) -> None:
        self.value = 1

    def __next__(self) -> int:
        return self.draw(1)

    def draw(self, count: int) -> int:
        """Draws ``count`` consecutive keys; returns the first."""
        self.value += count
        return self.value - count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The workers that take part in a program's collectives.

    Collectives have no timeout of their own; their caller sets one (``Deadline``).
    """

    num_workers: int  # Worker processes.
    worker_id: int  # Index of this process.
    # Worker ids in the order in which a gather returns their parts.
    order: tuple[int, ...]
    # Instance keys; all workers draw them in the same order.
    keys: Keys = dataclasses.field(default_factory=Keys)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatGroup:
    """All replicas of a job, each on a device of its own."""

    size: int  # Replicas of the job.
    key: int  # The same in all processes.
    keys: Keys  # Instance keys; all processes draw them in the same order.


# By devices: TensorFlow and NCCL keep a group, and its memory, as long as the process.
_FLAT_GROUPS: dict[tuple[int, tuple[str, ...]], FlatGroup] = {}


def flat_group(topology: Topology, group: Group | None) -> FlatGroup:
    """The flat group of a topology, always the same one."""
    place = topology.num_replicas, topology.replica_devices
    if place not in _FLAT_GROUPS:
        _FLAT_GROUPS[place] = FlatGroup(
            size=topology.num_replicas,
            key=FLAT_GROUP_KEY + len(_FLAT_GROUPS),
            keys=Keys() if group is None else group.keys,
        )
    return _FLAT_GROUPS[place]
