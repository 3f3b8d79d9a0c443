"""Virtual CPU devices that are taken for parts of GPUs."""

from replicator.core import devices, topology
from replicator.engine import convolutions


def take_cpus_for_gpus(replace=setattr):
    """Every CPU device has memory of its own, and is not one of NCCL's."""
    replace(devices, "memory", lambda device: device)
    replace(devices, "have_virtual_gpus", lambda names: True)
    are_own = property(
        lambda self: len(set(self.replica_devices)) == len(self.replica_devices)
    )
    replace(topology.Topology, "has_own_gpus", are_own)
    # On GPUs, convolutions stay what they are.
    replace(convolutions, "multiply", lambda *_: None)
    replace(convolutions, "fuse", lambda *_: None)
