"""The collectives: an entry for each, over three patterns.

A *reduction* combines the values of all replicas, a *gather* gives every replica the
values of all, and an *exchange* gives each replica the value of one. An entry says what
is particular to it. Users call the functions of ``calls.py``, and of ``reductions.py``.
``docs/howto/collective.md`` adds a collective.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives.differentiable import (
    communicate,
    join_rows,
    swap_dimensions,
)
from replicator.collectives.kind import (
    BROADCAST,
    GATHER,
    NOTHING,
    REDUCE,
    TENSORS,
    BetweenWorkers,
    CollectiveKind,
    Transfer,
    by_replica,
    gathered_bytes,
    reduced_bytes,
)
from replicator.core.context import wire_of
from replicator.core.devices import NCCL_DTYPES, RING_DTYPES
from replicator.errors import StaticShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.collectives.kind import Links, Node, Operands, Ops, Sums, Tensors
    from replicator.core.context import ReplicaContext
    from replicator.core.topology import Topology


def all_sum(context: ReplicaContext, tensors: Tensors) -> list[tf.Tensor]:
    """Sums each tensor over replicas; has gradients."""
    return communicate(context, AllReduce(op="sum"), tensors)


def _at_once(
    kind: CollectiveKind, context: ReplicaContext, stacked: tf.Tensor
) -> tf.Tensor:
    """The collective of the operands of all iterations, element by element."""
    return communicate(context, kind, [stacked])[0]


def _by_rows(
    kind: CollectiveKind, context: ReplicaContext, stacked: tf.Tensor
) -> tf.Tensor:
    """The same where rows count: iterations become a further dimension of a row."""
    return swap_dimensions(communicate(context, kind, [swap_dimensions(stacked)])[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reduce(CollectiveKind, is_pattern=True):
    """A reduction over replicas."""

    op: str  # ``sum``, ``mean``, ``min`` or ``max``.

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        return dtype

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        # One whole tensor per worker: TensorFlow's rings have no reduce-scatter.
        return BetweenWorkers(REDUCE, reduced_bytes(num_bytes, topology))


def _shared_by_holders(
    context: ReplicaContext, xs: Tensors, extremes: Tensors, totals: Tensors
) -> Tensors:
    """Gradients, split equally over the replicas that have the extreme value."""
    both = zip(xs, extremes, strict=True)
    holds = [tf.cast(tf.equal(x, extreme), x.dtype) for x, extreme in both]
    counts = all_sum(context, holds)
    return [h * t / c for h, t, c in zip(holds, totals, counts, strict=True)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(Reduce):
    """A reduction over replicas, whose result every replica gets."""

    # Type in which wider floating operands are sent between memories, or None for their
    # own; gradients are sent in full precision.
    wire_dtype: tf.DType | None = dataclasses.field(default=None, repr=False)

    name = "all_reduce"
    is_invariant = True
    is_fused = True
    vectorized = _at_once

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        del num_replicas
        return shape

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        if self.op in ("sum", "mean"):
            return communicate(context, AllReduce(op=self.op), dys)
        return _shared_by_holders(context, xs, ys, all_sum(context, dys))

    def local_result(
        self, ops: Ops, operand: Any, replica: Any, num_replicas: int
    ) -> Any:
        del replica
        if self.op != "sum" or num_replicas == 1:
            return operand
        return ops.scale(operand, num_replicas)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        # In the type that is sent; minimum and maximum of the stacks.
        sent = [tf.cast(t, self.sent_dtype(t.dtype)) for t in tensors]
        if self.op in ("sum", "mean"):
            reduced = sums.reduce(sent, self.op)
        else:
            rows = sums.stack(sent)
            reduced = [TENSORS.reduce(self.op, tf.unstack(row)) for row in rows]
        return [tf.cast(y, x.dtype) for x, y in zip(tensors, reduced, strict=True)]

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        return wire_of(dtype, self.wire_dtype)

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        # On every device at once, or on that of an owner.
        if self.op in ("min", "max"):
            return "pairwise"
        if not topology.has_own_gpus or not operands.have_static_shapes:
            return "add_n"
        flat = "ring" if topology.has_virtual_gpus else "nccl"
        allowed = RING_DTYPES if flat == "ring" else NCCL_DTYPES
        sent = {self.sent_dtype(dtype) for dtype in operands.dtypes}
        return flat if sent <= allowed else "add_n"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        # Within memories, between them, and between workers.
        return at.reduced(self.op, self.wire_dtype)

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        # Each memory sends one tensor to the owner, and gets one back. Where they are
        # in several processes, it is one of each.
        for memory in dict.fromkeys(topology.leaders(owner)):
            yield Transfer(memory, owner, num_bytes)
            yield Transfer(owner, memory, num_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReduceScatter(Reduce):
    """A reduction over replicas, of which each replica gets its part of the rows."""

    name = "reduce_scatter"
    is_invariant = False
    is_fused = False
    vectorized = _by_rows

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        rows = None if shape[0] is None else shape[0] // num_replicas
        return tf.TensorShape([rows]).concatenate(shape[1:])

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        def all_rows(parts: Tensors) -> Tensors:
            return list(map(join_rows, communicate(context, AllGather(), parts)))

        whole = all_rows(dys)
        if self.op == "sum":
            return whole
        if self.op == "mean":
            count = context.num_replicas_in_sync
            return [dy / tf.cast(count, dy.dtype) for dy in whole]
        return _shared_by_holders(context, xs, all_rows(ys), whole)

    def local_result(
        self, ops: Ops, operand: Any, replica: Any, num_replicas: int
    ) -> Any:
        whole = AllReduce(op=self.op).local_result(ops, operand, replica, num_replicas)
        return whole if num_replicas == 1 else ops.part(whole, replica, num_replicas)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        whole = AllReduce(op=self.op).by_sums(sums, tensors)
        return [TENSORS.part(t, sums.replica_id, sums.num_replicas) for t in whole]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        # Each part on the device of its replica; over workers all of them there.
        del operands
        return "parts" if topology.num_programs == 1 else "add_n"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        # Splits where the tensors are, so that only parts leave a memory.
        count, first = at.num_replicas, at.first_replica_id
        if at.num_workers > 1:
            (whole,) = at.reduced(self.op, None)
            return by_replica(at, lambda r: at.ops(r).part(whole[r], first + r, count))
        partials = at.partials(self.op)

        def own_part(r: int) -> Node:
            parts = [at.ops(memory).part(ref, r, count) for memory, ref in partials]
            result = at.ops(r).reduce(self.op, parts)
            return at.ops(r).scale(result, 1 / count) if self.op == "mean" else result

        return by_replica(at, own_part)

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        del owner  # each memory sends every replica its part
        count = topology.num_local_replicas
        for memory in dict.fromkeys(topology.memories):
            for replica in range(count):
                yield Transfer(memory, replica, num_bytes / count)


class Gather(CollectiveKind, is_pattern=True):
    """The values of all replicas, which every replica gets."""

    is_invariant = True
    is_fused = False

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        return dtype

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        # All operands go to the owner, and all of them come back.
        replicas = range(topology.num_local_replicas)
        yield from (Transfer(replica, owner, num_bytes) for replica in replicas)
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(owner, memory, num_bytes * len(replicas))

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        # Rows are padded to the most that one worker has.
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllGather(Gather):
    """A stack of the values of all replicas."""

    name = "all_gather"

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        return tf.TensorShape([num_replicas]).concatenate(shape)

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        del xs, ys  # the own slice of the sum
        mine = context.replica_id_in_sync_group
        return [dy[mine] for dy in all_sum(context, dys)]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        return swap_dimensions(communicate(context, self, [stacked])[0])

    def local_result(
        self, ops: Ops, operand: Any, replica: Any, num_replicas: int
    ) -> Any:
        del replica
        return ops.stack([operand] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        # The stock gather fails on virtual CPU devices: it needs more devices than the
        # strategy has.
        return sums.stack(tensors)

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        del operands, topology  # on the device of an owner
        return "pack"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.stacked()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllConcat(Gather):
    """The rows of all replicas: how sparse tensors are summed.

    Their numbers may differ between replicas, but not between the tensors of one call.
    """

    name = "all_concat"
    vectorized = _by_rows

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        if shape.rank is None:
            return shape
        rows = None if shape[0] is None else shape[0] * num_replicas
        return tf.TensorShape([rows]).concatenate(shape[1:])

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        del ys  # the own rows of the sum
        (counts,) = context.communicate(AllGather(), [tf.shape(xs[0])[0]])
        mine = context.replica_id_in_sync_group
        begin = tf.reduce_sum(counts[:mine])
        end = begin + counts[mine]
        return [dy[begin:end] for dy in all_sum(context, dys)]

    def local_result(
        self, ops: Ops, operand: Any, replica: Any, num_replicas: int
    ) -> Any:
        del replica
        return operand if num_replicas == 1 else ops.concat([operand] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
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
        del operands, topology  # on the device of an owner
        return "concat"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.joined()]


class Exchange(CollectiveKind, is_pattern=True):
    """A result of the shape of the operand, made of what other replicas hold."""

    is_invariant = False
    is_fused = False

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        del num_replicas
        return shape

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        return dtype

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        # All tensors: R times what they need.
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))


class Route(Exchange, is_pattern=True):
    """An exchange that gives each replica the value of one.

    Replicas of one program read their sources. Over workers all values are gathered, if
    a replica reads one of another worker. The gradient is sent back to the source.
    """

    vectorized = _at_once

    @abc.abstractmethod
    def source(self, replica: int, num_replicas: int) -> int:
        """The replica whose value a replica gets; -1 for zeros."""

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        del xs, ys
        count = context.num_replicas_in_sync
        back = [
            (r, source) for r in range(count) if (source := self.source(r, count)) >= 0
        ]
        return communicate(context, Permute(pairs=tuple(back)), dys)

    def local_result(
        self, ops: Ops, operand: Any, replica: Any, num_replicas: int
    ) -> Any:
        # Of several replicas, a control keeps the operand on those that get zeros, too.
        del replica
        is_kept = num_replicas > 1 or self.source(0, 1) >= 0
        return operand if is_kept else ops.zeros_like(operand)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        count = sums.num_replicas
        source = tf.constant([self.source(r, count) for r in range(count)])[
            sums.replica_id
        ]
        return [
            tf.where(source < 0, tf.zeros_like(rows[0]), rows[tf.maximum(source, 0)])
            for rows in sums.stack(tensors)
        ]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        del operands
        return "pack" if self._joins_workers(topology) else "wire"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        count, first = at.num_replicas, at.first_replica_id
        sources = [self.source(first + r, count) for r in range(len(at.operands))]
        is_gathered = at.num_workers > 1 and self._joins(len(at.operands), count)
        rows = at.stacked() if is_gathered else None

        def received(r: int) -> Node:
            source, ops = sources[r], at.ops(r)
            if rows is not None:
                # Zeros are made of what was gathered, too: a worker that did not use it
                # would not take part, and the others would wait for it forever.
                found = ops.unstack(rows[r], count)[max(source, 0)]
            else:
                found = at.operands[r if source < 0 else source - first]
            return ops.zeros_like(found) if source < 0 else found

        return by_replica(at, received)

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        del owner
        count = topology.num_replicas
        for replica in range(count):
            source = self.source(replica, count)
            if source >= 0:
                yield Transfer(source, replica, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        if not self._joins_workers(topology):
            return BetweenWorkers(NOTHING, 0.0)
        return super().between_workers(num_bytes, topology)

    def _joins_workers(self, topology: Topology) -> bool:
        return self._joins(topology.num_local_replicas, topology.num_replicas)

    def _joins(self, num_local: int, num_replicas: int) -> bool:
        """Whether a replica reads the value of another worker; all say the same."""
        return any(
            source >= 0 and source // num_local != replica // num_local
            for replica in range(num_replicas)
            for source in [self.source(replica, num_replicas)]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Permute(Route):
    """The value of the replica that sends to this one; zeros if none does."""

    pairs: tuple[tuple[int, int], ...]  # Source and target of each value.

    name = "permute"

    @property
    def parameter(self) -> str:
        return ", ".join(f"{source}->{target}" for source, target in self.pairs)

    def source(self, replica: int, num_replicas: int) -> int:
        del num_replicas
        return next((s for s, target in self.pairs if target == replica), -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broadcast(Route):
    """The value of one replica, which every replica gets."""

    source_replica_id: int  # Whose.

    name = "broadcast"
    is_invariant = True

    def source(self, replica: int, num_replicas: int) -> int:
        del replica, num_replicas
        return self.source_replica_id

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        del xs, ys  # the sum, on the source
        is_source = tf.equal(context.replica_id_in_sync_group, self.source_replica_id)
        return [
            tf.where(is_source, dy, tf.zeros_like(dy)) for dy in all_sum(context, dys)
        ]

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        # Sums zeros with the value of the source: ``tf.distribute`` has no broadcast.
        is_source = tf.equal(sums.replica_id, self.source_replica_id)
        return sums.reduce(
            [tf.where(is_source, t, tf.zeros_like(t)) for t in tensors], "sum"
        )

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        del operands, topology  # workers receive it, and gather nothing
        return "wire"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.received_from(self.source_replica_id)]

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        del owner
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(self.source_replica_id, memory, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        others = topology.num_programs - 1
        return BetweenWorkers(BROADCAST, float(others * num_bytes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllToAll(Exchange):
    """The parts of all replicas that are for this one; it is its own transpose."""

    name = "all_to_all"
    vectorized = _by_rows

    def gradient(
        self, context: ReplicaContext, xs: Tensors, ys: Tensors, dys: Tensors
    ) -> Tensors:
        del xs, ys
        return communicate(context, self, dys)

    def local_result(
        self, ops: Ops, operand: Any, replica: Any, num_replicas: int
    ) -> Any:
        if num_replicas == 1:
            return operand
        part = ops.part(operand, replica, num_replicas)
        return ops.concat([part] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        return [
            _parts_of(TENSORS, rows, sums.replica_id, sums.num_replicas)
            for rows in sums.stack(tensors)
        ]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        # Each part to the device of its replica; over workers all of them.
        del operands
        return "parts" if topology.num_programs == 1 else "pack"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        # Splits where the tensors are, so that only parts leave a memory.
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
        del owner  # every replica sends every other one a part
        count = topology.num_local_replicas
        for source, target in itertools.product(range(count), repeat=2):
            yield Transfer(source, target, num_bytes / count)


def _parts_of(ops: Ops, stacked: Any, replica: Any, count: int) -> Any:
    """The part of each stacked tensor that is for a replica, joined."""
    return ops.concat(ops.unstack(ops.part(stacked, replica, count, axis=1), count))
