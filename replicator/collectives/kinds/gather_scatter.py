"""Gathers and scatters: each replica gets the values of all, or its part of a sum."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.differentiable import (
    as_written,
    check_rows,
    dense,
    join_rows,
    swap_dimensions,
)
from replicator.collectives.kind import (
    GATHER,
    REDUCE,
    TENSORS,
    BetweenWorkers,
    CollectiveKind,
    OfOperandShape,
    OfOwnType,
    Transfer,
    by_replica,
    gathered_bytes,
    reduced_bytes,
)
from replicator.collectives.kinds.all_reduce import AllReduce, all_sum
from replicator.core import context as context_lib
from replicator.errors import StaticShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.kind import Links, Node, Operands, Ops, Sums
    from replicator.core.context import ReplicaContext
    from replicator.core.topology import Topology


# Its gradient is the replica's own slice of the summed gradient.


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
        return swap_dimensions(gathered)

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


# It is how sparse tensors are summed. The numbers may differ between replicas, but not
# between the tensors of one call. Its gradient is the replica's own rows of the sum.


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
        (joined,) = differentiable.communicate(
            context, self, [swap_dimensions(stacked)]
        )
        return swap_dimensions(joined)

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
            return [join_rows(rows) for rows in sums.stack(tensors)]
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


# Its gradient is the ``all_to_all`` of the gradients: it is its own transpose.


@as_written
def all_to_all(value: Any) -> Any:
    """Exchanges parts: replica r gets the r-th part of the rows of every replica.

    Applied twice, it gives the value back. Replicas of one program send each other
    parts only. Between worker processes each worker gathers all tensors and keeps its
    parts.

    Args:
      value: A nest of dense tensors of any type, of the same structure and shapes on
        every replica, whose first dimension is a multiple of the number of replicas in
        sync.

    Returns:
      A nest of the same structure and shapes: on replica r, the r-th parts of all
      replicas, joined in the order of ``replica_id``.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Rows that cannot be divided equally, or a leaf is
        ``tf.IndexedSlices``.
    """
    context = context_lib.require("all_to_all")
    tensors = dense(value, "all_to_all", "divides")
    check_rows(tensors, "all_to_all", context.num_replicas_in_sync)
    results = differentiable.communicate(context, AllToAll(), tensors)
    return tf.nest.pack_sequence_as(value, results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllToAll(OfOperandShape, OfOwnType, CollectiveKind):
    """The parts of all replicas that are for this one."""

    name = "all_to_all"
    parameter = ""
    is_invariant = False
    is_fused = False

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """Sends every part of the gradient back."""
        del xs, ys
        return differentiable.communicate(context, self, dys)

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Iterations become a further dimension of a row."""
        (exchanged,) = differentiable.communicate(
            context, self, [swap_dimensions(stacked)]
        )
        return swap_dimensions(exchanged)

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The own part of the operand, R times."""
        if num_replicas == 1:
            return operand
        part = ops.part(operand, replica, num_replicas)
        return ops.concat([part] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Stacks all tensors and keeps the own part of each."""
        return [
            _parts_of(TENSORS, rows, sums.replica_id, sums.num_replicas)
            for rows in sums.stack(tensors)
        ]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Each part to the device of its replica; over workers all of them."""
        del operands
        return "parts" if topology.num_programs == 1 else "pack"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Splits where the tensors are, so that only parts leave a memory."""
        count, first = at.num_replicas, at.first_replica_id
        if at.num_workers > 1:
            rows = at.stacked()
            return by_replica(
                at, lambda r: _parts_of(at.ops(r), rows[r], first + r, count)
            )
        sources = list(enumerate(at.operands))
        return by_replica(
            at,
            lambda r: at.ops(r).concat(
                [at.ops(s).part(operand, r, count) for s, operand in sources]
            ),
        )

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """Every replica sends every other one a part."""
        del owner
        count = topology.num_local_replicas
        for source in range(count):
            for target in range(count):
                yield Transfer(source, target, num_bytes / count)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Workers gather all tensors: R times what they need."""
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))


def _parts_of(ops: Ops, stacked: Any, replica: Any, count: int) -> Any:
    """The part of each stacked tensor that is for a replica, joined."""
    return ops.concat(ops.unstack(ops.part(stacked, replica, count, axis=1), count))


# Its gradient is the gathered gradients of all parts: as they are for a sum, divided by
# R for a mean; for a minimum or maximum, split equally over the replicas that have the
# extreme value.


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
        differentiable.check_reducible(tensor, op, "reduce_scatter")
    check_rows(tensors, "reduce_scatter", context.num_replicas_in_sync)
    sent = [tf.cast(t, differentiable.stand_in(t.dtype, op)) for t in tensors]
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
        (part,) = differentiable.communicate(context, self, [swap_dimensions(stacked)])
        return swap_dimensions(part)

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
    return [join_rows(rows) for rows in stacked]
