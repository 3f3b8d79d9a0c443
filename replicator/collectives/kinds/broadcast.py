"""broadcast: sends the value of one replica to all.

Its gradient is the sum of the gradients, on the source.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.kind import (
    BROADCAST,
    BetweenWorkers,
    CollectiveKind,
    OfOperandShape,
    OfOwnType,
    Transfer,
)
from replicator.collectives.kinds.all_reduce import all_sum
from replicator.collectives.nests import as_written
from replicator.step import context as context_lib
from replicator.step.values import tensor_of
from replicator.validation.arguments import is_integer, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.linking import Links, Node, Ops
    from replicator.collectives.operands import Operands
    from replicator.collectives.sums import Sums
    from replicator.placement.topology import Topology
    from replicator.step.context import ReplicaContext


@as_written
def broadcast(value: Any, source_replica_id: int = 0) -> Any:
    """Sends the value of one replica to all replicas.

    Args:
      value: A nest of tensors of any type, or ``tf.IndexedSlices``, with the same
        shapes on every replica; it is evaluated on all of them.
      source_replica_id: A Python int in [0, num_replicas_in_sync): the index of the
        source among the replicas in sync.

    Returns:
      A nest of the same structure and shapes, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: ``source_replica_id`` is not an int, or a leaf is not a dense tensor.
      ValueError: ``source_replica_id`` is out of range.
    """
    context = context_lib.require("broadcast")
    if not is_integer(source_replica_id):
        raise TypeError(
            f"source_replica_id {shown(source_replica_id)} must be a Python int, "
            "because the source is fixed when the step is traced"
        )
    count = context.num_replicas_in_sync
    if not 0 <= source_replica_id < count:
        raise ValueError(
            f"source_replica_id {shown(source_replica_id)} is out of range: there are "
            f"{count} replicas; use 0 to {count - 1}"
        )

    leaves = tf.nest.flatten(value)
    # Slices are sent as two tensors; their dense shape is known on all replicas.
    parts = [
        tensor_of(part, "broadcast() takes a nest of dense tensors")
        for leaf in leaves
        for part in (
            (leaf.values, leaf.indices)
            if isinstance(leaf, tf.IndexedSlices)
            else (leaf,)
        )
    ]
    kind = Broadcast(source_replica_id=source_replica_id)
    sent = iter(differentiable.communicate(context, kind, parts))
    received = [
        tf.IndexedSlices(next(sent), next(sent), leaf.dense_shape)
        if isinstance(leaf, tf.IndexedSlices)
        else next(sent)
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(value, received)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broadcast(OfOperandShape, OfOwnType, CollectiveKind):
    """The value of one replica, which every replica gets."""

    source_replica_id: int  # Whose.

    name = "broadcast"
    is_invariant = True
    is_fused = False

    @property
    def parameter(self) -> str:
        """The source."""
        return str(self.source_replica_id)

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """The sum, on the source."""
        del xs, ys
        is_source = tf.equal(context.replica_id_in_sync_group, self.source_replica_id)
        return [
            tf.where(is_source, dy, tf.zeros_like(dy)) for dy in all_sum(context, dys)
        ]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Sends the operands of all iterations at once."""
        return differentiable.communicate(context, self, [stacked])[0]

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The operand."""
        del ops, replica, num_replicas
        return operand

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums zeros with the source's value: ``tf.distribute`` has no broadcast."""
        is_source = tf.equal(sums.replica_id, self.source_replica_id)
        return sums.reduce(
            [tf.where(is_source, t, tf.zeros_like(t)) for t in tensors], "sum"
        )

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Every replica reads the source's value."""
        del operands, topology
        return "wire"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Finds the source among this program's replicas, or receives it."""
        return [at.received_from(self.source_replica_id)]

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """Each memory gets the value."""
        del owner
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(self.source_replica_id, memory, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Each worker but the source's gets the value."""
        others = topology.num_programs - 1
        return BetweenWorkers(BROADCAST, float(others * num_bytes))
