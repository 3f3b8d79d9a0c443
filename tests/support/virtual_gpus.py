"""Virtual CPU devices that are taken for parts of GPUs, for the life of a process."""

from __future__ import annotations

from replicator.placement import devices, topology


def take_cpus_for_gpus():
    """Every CPU device has memory of its own, and is not one of NCCL's."""
    devices.memory = lambda device: device
    devices.have_virtual_gpus = lambda names: True
    topology.Topology.has_own_gpus = property(
        lambda self: len(set(self.replica_devices)) == len(self.replica_devices)
    )
