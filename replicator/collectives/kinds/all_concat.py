"""all_concat: joins the rows of all replicas, which may have different numbers of them.

It is how sparse tensors are summed. The numbers may differ between replicas, but not
between the tensors of one call. Its gradient is the replica's own rows of the sum.
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
from replicator.collectives.kinds.all_gather import AllGather
from replicator.collectives.kinds.all_reduce import all_sum
from replicator.collectives.rows import join, swap
from replicator.errors import StaticShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.linking import Links, Node, Ops
    from replicator.collectives.operands import Operands
    from replicator.collectives.sums import Sums
    from replicator.placement.topology import Topology
    from replicator.step.context import ReplicaContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllConcat(OfOwnType, CollectiveKind):
    """The rows of all replicas, which every replica gets."""

    name = "all_concat"
    parameter = ""
    is_invariant = True
    is_fused = False

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        """R times as many rows."""
        if shape.rank is None:
            return shape
        rows = None if shape[0] is None else shape[0] * num_replicas
        return tf.TensorShape([rows]).concatenate(shape[1:])

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """The own rows of the sum."""
        del ys
        (counts,) = context.communicate(AllGather(), [tf.shape(xs[0])[0]])
        mine = context.replica_id_in_sync_group
        begin = tf.reduce_sum(counts[:mine])
        end = begin + counts[mine]
        return [dy[begin:end] for dy in all_sum(context, dys)]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Joins the rows of all iterations, which are a further dimension of a row."""
        (joined,) = differentiable.communicate(context, self, [swap(stacked)])
        return swap(joined)

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The rows R times."""
        del replica
        return operand if num_replicas == 1 else ops.concat([operand] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums zeros with the own rows in their place."""
        if sums.has_static_shapes:
            if tensors[0].shape[0] is None:
                raise StaticShapeError(
                    "the number of rows of a sparse gradient is not known when the "
                    "step is traced, but TPU steps are compiled with static shapes; "
                    "batch with drop_remainder=True, pad ids to a fixed length, or use "
                    "tf.convert_to_tensor on the gradient"
                )
            return [join(rows) for rows in sums.stack(tensors)]
        num_rows = tf.shape(tensors[0])[0]
        (counts,) = sums.stack([num_rows])
        before = tf.reduce_sum(counts[: sums.replica_id])
        # One row more than there are: TensorFlow crashes on an empty reduction.
        after = tf.reduce_sum(counts) - before - num_rows + 1
        placed = [
            tf.pad(tensor, [[before, after], *([[0, 0]] * (len(tensor.shape) - 1))])
            for tensor in tensors
        ]
        return [rows[:-1] for rows in sums.reduce(placed, "sum")]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Joined on an owner's device."""
        del operands, topology
        return "concat"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Joins the rows of this program, and those of all workers."""
        return [at.joined()]

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """All rows go to the owner, and all of them come back."""
        return AllGather().transfers(num_bytes, owner, topology)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Workers gather the rows of all, padded to the most that one has."""
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))
