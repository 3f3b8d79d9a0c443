"""Packed outputs: what the replicas of another process return, as one vector per type.

In one graph of several processes all outputs of a step travel to the process that runs
it. Losses and the like are a few bytes of each replica, and every transfer costs about
a millisecond; so those of one process are joined there, and taken apart by the caller.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.collectives.buckets import num_bytes, unpack
from replicator.collectives.kind import Transfer
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import kernels
from replicator.placement import devices as device_lib

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from replicator.engine.graph.body import Ref
    from replicator.placement.topology import Topology


class PackedOutputs:
    """Which outputs of the replicas of one program are returned as one.

    Attributes:
      specs: Of what the function returns: outputs on their own, then vectors.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], topology: Topology) -> None:
        """Decides."""
        self._topology = topology
        self._flat = [*specs] * topology.num_local_replicas
        processes = list(map(device_lib.process, topology.replica_devices))
        groups: dict[tuple[str, tf.DType], list[int]] = {}
        for position, spec in enumerate(self._flat):
            process = processes[position // len(specs)]
            if process != processes[0] and _is_small(spec):
                groups.setdefault((process, spec.dtype), []).append(position)
        self._groups = [tuple(group) for group in groups.values() if len(group) > 1]
        packed = {position for group in self._groups for position in group}
        self._alone = [p for p in range(len(self._flat)) if p not in packed]
        self._replicas = [position // len(specs) for position in range(len(self._flat))]
        self.specs = [self._flat[position] for position in self._alone] + [
            tf.TensorSpec(
                [sum(map(math.prod, self._shapes(group)))], self._dtype(group)
            )
            for group in self._groups
        ]

    def pack(
        self, outputs: Sequence[Ref | str], prefix: str
    ) -> tuple[list[Ref | str], list[Any]]:
        """Joins outputs where they are."""
        emit = Emitter(kernels.supported_device)
        returned = [outputs[position] for position in self._alone]
        for index, group in enumerate(self._groups):
            device = self._topology.replica_devices[self._replicas[group[0]]]
            refs = [outputs[position] for position in group]
            name = f"{prefix}/outputs_{index}"
            dtype = self._dtype(group)
            returned.append(emit.pack(name, refs, self._shapes(group), dtype, device))
        return returned, emit.nodes

    def unpack(self, returned: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Takes apart, in the caller's graph, what the function returned."""
        outputs = dict(zip(self._alone, returned, strict=False))
        vectors = returned[len(self._alone) :]
        with tf.device(device_lib.cpu_of(self._topology.replica_devices[0])):
            for group, vector in zip(self._groups, vectors, strict=True):
                shapes = [tf.TensorShape(shape) for shape in self._shapes(group)]
                outputs.update(zip(group, unpack(vector, shapes), strict=True))
        return [outputs[position] for position in range(len(self._flat))]

    @property
    def transfers(self) -> list[Transfer]:
        """What is sent to the caller, as if that was replica 0."""
        groups = [(position,) for position in self._alone] + self._groups
        return [
            Transfer(
                source=self._replicas[group[0]],
                target=0,
                num_bytes=num_bytes(spec.shape, spec.dtype),
            )
            for group, spec in zip(groups, self.specs, strict=True)
        ]

    def _shapes(self, group: Sequence[int]) -> list[list[int]]:
        return [self._flat[position].shape.as_list() for position in group]

    def _dtype(self, group: Sequence[int]) -> tf.DType:
        return self._flat[group[0]].dtype


def _is_small(spec: tf.TensorSpec) -> bool:
    """Whether copying it is cheaper than sending it apart."""
    is_joined = spec.dtype in kernels.GPU_DTYPES["ConcatV2"]
    return is_joined and 0 < num_bytes(spec.shape, spec.dtype) < FUSE_BELOW_BYTES
