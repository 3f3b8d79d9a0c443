"""Replica devices: which device of a replica a requested device stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.placement import devices as device_lib
from replicator.step import logical

if TYPE_CHECKING:
    from replicator.placement.topology import Topology


class ReplicaDevices:
    """Translates the devices that a step requests into those of each replica."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._specs = [
            tf.DeviceSpec.from_string(device) for device in topology.replica_devices
        ]

    def device(self, requested: str, replica: int) -> str:
        """The full name of a device."""
        index = logical.index_of(requested)
        if index is not None:
            return self._topology.devices[replica][index]
        mine = self._specs[replica]
        if requested:
            spec = tf.DeviceSpec.from_string(requested)
            if spec.job not in (None, mine.job):
                return requested  # a parameter server, which is not a replica's device
            if spec.device_type not in (None, mine.device_type):
                # Not the replica's own index: GPU:1 does not imply that CPU:1 exists.
                place = spec.device_index or 0
                other = mine.replace(device_type=spec.device_type, device_index=place)
                return str(other.to_string())
        return self._topology.devices[replica][0]

    def device_type(self, requested: str) -> str | None:
        """The type of a device, or None where replicas have devices of several."""
        found = {
            device_lib.device_type(self.device(requested, replica))
            for replica in range(self._topology.num_local_replicas)
        }
        return found.pop() if len(found) == 1 else None
