"""reduce_scatter: reduces a value over replicas; replica r gets the r-th part of rows.

Its gradient is the gathered gradients of all parts: as they are for a sum, divided by
R for a mean; for a minimum or maximum, split equally over the replicas that have the
extreme value.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable, reducible
from replicator.collectives.kind import (
    REDUCE,
    BetweenWorkers,
    CollectiveKind,
    OfOwnType,
    Transfer,
    reduced_bytes,
)
from replicator.collectives.kinds.all_gather import AllGather
from replicator.collectives.kinds.all_reduce import AllReduce, all_sum
from replicator.collectives.linking import TENSORS, by_replica
from replicator.collectives.nests import as_written, check_rows, dense
from replicator.collectives.rows import join, swap
from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.linking import Links, Node, Ops
    from replicator.collectives.operands import Operands
    from replicator.collectives.sums import Sums
    from replicator.placement.topology import Topology
    from replicator.step.context import ReplicaContext


@as_written
def reduce_scatter(value: Any, op: str = "sum") -> Any:
    """Reduces a value over replicas and gives each replica its part of the rows.

    ``all_gather`` of the results is the ``all_reduce`` of the values. Replicas of one
    program send each other parts only. Between worker processes TensorFlow's rings
    reduce whole tensors, so there as many bytes are sent as by ``all_reduce``.

    Args:
      value: A nest of dense tensors of the same structure and shapes on every replica,
        whose first dimension is a multiple of the number of replicas in sync.
      op: ``sum``, ``mean``, ``min`` or ``max``, of the types that ``all_reduce`` takes.

    Returns:
      A nest of the same structure: rows ``r * k`` to ``(r + 1) * k`` of the reduced
      tensors on replica r, if each replica gets k rows.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Rows that cannot be divided equally, a leaf is ``tf.IndexedSlices``,
        or ``op`` is unknown or not defined for a type.
    """
    context = context_lib.require("reduce_scatter")
    context_lib.check_reduce_op(op)
    tensors = dense(value, "reduce_scatter", "divides")
    for tensor in tensors:
        reducible.check(tensor, op, "reduce_scatter")
    check_rows(tensors, "reduce_scatter", context.num_replicas_in_sync)
    sent = [tf.cast(t, reducible.stand_in(t.dtype, op)) for t in tensors]
    parts = differentiable.communicate(context, ReduceScatter(op=op), sent)
    results = [tf.cast(y, x.dtype) for x, y in zip(tensors, parts, strict=True)]
    return tf.nest.pack_sequence_as(value, results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReduceScatter(OfOwnType, CollectiveKind):
    """A reduction over replicas, of which each replica gets its part of the rows."""

    op: str  # ``sum``, ``mean``, ``min`` or ``max``.

    name = "reduce_scatter"
    is_invariant = False
    is_fused = False

    @property
    def parameter(self) -> str:
        """The reduction."""
        return self.op

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        """One R-th of the rows."""
        rows = None if shape[0] is None else shape[0] // num_replicas
        return tf.TensorShape([rows]).concatenate(shape[1:])

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """See the top of this file."""
        whole = _all_rows(context, dys)
        if self.op == "sum":
            return whole
        if self.op == "mean":
            count = context.num_replicas_in_sync
            return [dy / tf.cast(count, dy.dtype) for dy in whole]
        extremes = _all_rows(context, ys)
        holds = [
            tf.cast(tf.equal(x, y), y.dtype) for x, y in zip(xs, extremes, strict=True)
        ]
        counts = all_sum(context, holds)
        return [h * t / c for h, t, c in zip(holds, whole, counts, strict=True)]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Iterations become a further dimension of a row."""
        (part,) = differentiable.communicate(context, self, [swap(stacked)])
        return swap(part)

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The own part, R times for a sum."""
        whole = AllReduce(op=self.op).of_own(ops, operand, replica, num_replicas)
        return whole if num_replicas == 1 else ops.part(whole, replica, num_replicas)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Reduces all rows and keeps its own."""
        whole = AllReduce(op=self.op).by_sums(sums, tensors)
        return [TENSORS.part(t, sums.replica_id, sums.num_replicas) for t in whole]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Each part on the device of its replica; over workers all of them there."""
        del operands
        return "parts" if topology.num_programs == 1 else "add_n"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Splits where the tensors are, so that only parts leave a memory."""
        count, first = at.num_replicas, at.first_replica_id
        if at.num_workers > 1:
            (reduced,) = at.reduced(self.op, None)
            return by_replica(
                at, lambda r: at.ops(r).part(reduced[r], first + r, count)
            )
        partials = at.partials(self.op)

        def own_part(r: int) -> Node:
            parts = [at.ops(place).part(ref, r, count) for place, ref in partials]
            result = at.ops(r).reduce(self.op, parts)
            return at.ops(r).scale(result, 1 / count) if self.op == "mean" else result

        return by_replica(at, own_part)

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """Each memory sends every replica its part."""
        del owner
        count = topology.num_local_replicas
        for memory in dict.fromkeys(topology.memories):
            for replica in range(count):
                yield Transfer(memory, replica, num_bytes / count)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """TensorFlow's rings have no reduce-scatter: all rows are reduced."""
        return BetweenWorkers(REDUCE, reduced_bytes(num_bytes, topology))


def _all_rows(
    context: ReplicaContext, parts: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    """The parts of all replicas as one tensor."""
    stacked = differentiable.communicate(context, AllGather(), parts)
    return [join(rows) for rows in stacked]
