"""all_gather: stacks the values of all replicas.

Its gradient is the replica's own slice of the summed gradient.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.kind import (
    GATHER,
    BetweenWorkers,
    CollectiveKind,
    OfOwnType,
    Transfer,
    gathered_bytes,
)
from replicator.collectives.kinds.all_reduce import all_sum
from replicator.collectives.nests import as_written, dense
from replicator.collectives.rows import swap
from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.linking import Links, Node, Ops
    from replicator.collectives.operands import Operands
    from replicator.collectives.sums import Sums
    from replicator.placement.topology import Topology
    from replicator.step.context import ReplicaContext


@as_written
def all_gather(value: Any) -> Any:
    """Stacks a value over replicas, in the order of ``replica_id``.

    Args:
      value: A nest of dense tensors of any type, with the same shapes on every replica.

    Returns:
      A nest of tensors of shape ``[num_replicas] + dims``, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: A leaf is ``tf.IndexedSlices``.
    """
    context = context_lib.require("all_gather")
    tensors = dense(value, "all_gather", "stacks")
    results = differentiable.communicate(context, AllGather(), tensors)
    return tf.nest.pack_sequence_as(value, results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllGather(OfOwnType, CollectiveKind):
    """A stack of the values of all replicas, which every replica gets."""

    name = "all_gather"
    parameter = ""
    is_invariant = True
    is_fused = False

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        """``[R] + shape``."""
        return tf.TensorShape([num_replicas]).concatenate(shape)

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """The own slice of the sum."""
        del xs, ys
        mine = context.replica_id_in_sync_group
        return [dy[mine] for dy in all_sum(context, dys)]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Stacks the operands of all iterations, then puts iterations first."""
        (gathered,) = differentiable.communicate(context, self, [stacked])
        return swap(gathered)

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """R copies."""
        del replica
        return ops.stack([operand] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums zeros with the own slice.

        The stock gather fails on virtual CPU devices: it needs more devices than the
        strategy has.
        """
        return sums.stack(tensors)

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Stacked on an owner's device."""
        del operands, topology
        return "pack"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Stacks the operands of this program, and those of all workers."""
        return [at.stacked()]

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """All operands go to the owner, and all of them come back."""
        replicas = range(topology.num_local_replicas)
        yield from (Transfer(replica, owner, num_bytes) for replica in replicas)
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(owner, memory, num_bytes * len(replicas))

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Workers gather the stacks of all."""
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))
