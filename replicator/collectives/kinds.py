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

from replicator.collectives.differentiable import communicate, join_rows
from replicator.collectives.kind import (
    BROADCAST,
    GATHER,
    NOTHING,
    REDUCE,
    TENSORS,
    Backward,
    BetweenWorkers,
    CollectiveKind,
    Transfer,
    by_replica,
)
from replicator.core.context import wire_of
from replicator.core.devices import NCCL_DTYPES, RING_DTYPES
from replicator.errors import StaticShapeError

if TYPE_CHECKING:
    from replicator.collectives.kind import (
        Collective,
        Links,
        Node,
        Ops,
        Sums,
        Tensors,
        Transfers,
    )
    from replicator.core.context import ReplicaContext
    from replicator.core.topology import Topology


def all_sum(context: ReplicaContext, tensors: Tensors) -> list[tf.Tensor]:
    """Sums each tensor over replicas; has gradients."""
    return communicate(context, AllReduce(op="sum"), tensors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reduce(CollectiveKind, is_pattern=True):
    op: str  # ``sum``, ``mean``, ``min`` or ``max``.

    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        is_added = self.op == "sum" and count > 1
        return ops.scale(operand, count) if is_added else operand

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        # In the type that is sent; minimum and maximum of the stacks.
        sent = [tf.cast(t, self.sent_dtype(t.dtype)) for t in tensors]
        if self.op in ("sum", "mean"):
            reduced = sums.reduce(sent, self.op)
        else:
            rows = sums.stack(sent)
            reduced = [TENSORS.reduce(self.op, tf.unstack(row)) for row in rows]
        return [tf.cast(y, x.dtype) for x, y in zip(tensors, reduced, strict=True)]

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        # TensorFlow's rings have no reduce-scatter: one whole tensor per worker, whose
        # replicas are reduced before, is reduced and distributed.
        return BetweenWorkers(REDUCE, 2.0 * (topology.num_programs - 1) * num_bytes)


def _shared_by_holders(
    backward: Backward, extremes: Tensors, totals: Tensors
) -> Tensors:
    """Gradients, split equally over the replicas that have the extreme value."""
    both = zip(backward.xs, extremes, strict=True)
    holds = [tf.cast(tf.equal(x, extreme), x.dtype) for x, extreme in both]
    counts = all_sum(backward.context, holds)
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
    algorithms = "add_n", "add_n"

    def result_shape(self, shape: tf.TensorShape, count: int) -> tf.TensorShape:
        return shape

    def gradient(self, backward: Backward) -> Tensors:
        if self.op in ("sum", "mean"):
            return communicate(backward.context, AllReduce(op=self.op), backward.dys)
        return _shared_by_holders(
            backward, backward.ys, all_sum(backward.context, backward.dys)
        )

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        return wire_of(dtype, self.wire_dtype)

    def algorithm(self, call: Collective, topology: Topology) -> str:
        # On every device at once, or on that of an owner.
        if self.op in ("min", "max"):
            return "pairwise"
        # TensorFlow's collective ops take tensors of known and some size.
        are_static = all(s.is_fully_defined() and s.num_elements() for s in call.shapes)
        if not topology.has_own_gpus or not are_static:
            return super().algorithm(call, topology)
        flat = "ring" if topology.has_virtual_gpus else "nccl"
        allowed = RING_DTYPES if flat == "ring" else NCCL_DTYPES
        sent = {self.sent_dtype(dtype) for dtype in call.dtypes}
        return flat if sent <= allowed else "add_n"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return at.reduced(self.op, self.wire_dtype)

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
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
    has_rows = True, True
    # Each part on the device of its replica; over workers all of them there.
    algorithms = "parts", "add_n"

    def result_shape(self, shape: tf.TensorShape, count: int) -> tf.TensorShape:
        rows = None if shape[0] is None else shape[0] // count
        return tf.TensorShape([rows]).concatenate(shape[1:])

    def gradient(self, backward: Backward) -> Tensors:
        def all_rows(parts: Tensors) -> Tensors:
            return list(
                map(join_rows, communicate(backward.context, AllGather(), parts))
            )

        whole = all_rows(backward.dys)
        if self.op == "sum":
            return whole
        if self.op == "mean":
            count = backward.context.num_replicas_in_sync
            return [dy / tf.cast(count, dy.dtype) for dy in whole]
        return _shared_by_holders(backward, all_rows(backward.ys), whole)

    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        whole = super().local_result(ops, operand, replica, count)
        return ops.part(whole, replica, count)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        whole = super().by_sums(sums, tensors)
        return [TENSORS.part(t, sums.replica_id, sums.num_replicas) for t in whole]

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

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # Each memory sends every replica its part.
        count = topology.num_local_replicas
        for memory in dict.fromkeys(topology.memories):
            for replica in range(count):
                yield Transfer(memory, replica, num_bytes / count)


def _gathered(_: Any, num_bytes: int, topology: Topology) -> BetweenWorkers:
    # A ring of W workers sends (W - 1) R b to gather R operands. Rows are padded to
    # the most that one worker has.
    others = topology.num_programs - 1
    return BetweenWorkers(GATHER, others * topology.num_replicas * float(num_bytes))


class Gather(CollectiveKind, is_pattern=True):
    """The values of all replicas, which every replica gets."""

    is_invariant = True
    between_workers = _gathered

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # All operands go to the owner, and all of them come back.
        replicas = range(topology.num_local_replicas)
        yield from (Transfer(replica, owner, num_bytes) for replica in replicas)
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(owner, memory, num_bytes * len(replicas))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllGather(Gather):
    """A stack of the values of all replicas."""

    name = "all_gather"
    has_rows = False, True
    algorithms = "pack", "pack"  # on the device of an owner

    def result_shape(self, shape: tf.TensorShape, count: int) -> tf.TensorShape:
        return tf.TensorShape([count]).concatenate(shape)

    def gradient(self, backward: Backward) -> Tensors:
        mine = backward.context.replica_id_in_sync_group
        return [dy[mine] for dy in all_sum(backward.context, backward.dys)]

    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        return ops.stack([operand] * count)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        # The stock gather fails on virtual CPU devices: it needs more devices than the
        # strategy has.
        return sums.stack(tensors)

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.stacked()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllConcat(Gather):
    """The rows of all replicas: how sparse tensors are summed.

    Their numbers may differ between replicas, but not between the tensors of one call.
    """

    name = "all_concat"
    has_rows = True, True
    algorithms = "concat", "concat"  # on the device of an owner

    def result_shape(self, shape: tf.TensorShape, count: int) -> tf.TensorShape:
        if shape.rank is None:
            return shape
        rows = None if shape[0] is None else shape[0] * count
        return tf.TensorShape([rows]).concatenate(shape[1:])

    def gradient(self, backward: Backward) -> Tensors:
        (counts,) = backward.context.communicate(
            AllGather(), [tf.shape(backward.xs[0])[0]]
        )
        mine = backward.context.replica_id_in_sync_group
        begin = tf.reduce_sum(counts[:mine])
        end = begin + counts[mine]
        return [dy[begin:end] for dy in all_sum(backward.context, backward.dys)]

    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        return ops.concat([operand] * count)

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

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.joined()]


class Exchange(CollectiveKind, is_pattern=True):
    """A result of the shape of the operand, made of what other replicas hold."""

    is_invariant = False
    between_workers = _gathered  # all tensors: R times what they need

    def result_shape(self, shape: tf.TensorShape, count: int) -> tf.TensorShape:
        return shape


class Route(Exchange, is_pattern=True):
    """An exchange that gives each replica the value of one.

    Replicas of one program read their sources. Over workers all values are gathered, if
    a replica reads one of another worker. The gradient is sent back to the source.
    """

    algorithms = "wire", "pack"

    @abc.abstractmethod
    def source(self, replica: int, num_replicas: int) -> int:
        """The replica whose value a replica gets; -1 for zeros."""

    def gradient(self, backward: Backward) -> Tensors:
        count = backward.context.num_replicas_in_sync
        back = [
            (r, source) for r in range(count) if (source := self.source(r, count)) >= 0
        ]
        return communicate(backward.context, Permute(pairs=tuple(back)), backward.dys)

    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        # Of several replicas, a control keeps the operand on those that get zeros, too.
        is_kept = count > 1 or self.source(0, 1) >= 0
        return operand if is_kept else ops.zeros_like(operand)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        count = sums.num_replicas
        sources = [self.source(r, count) for r in range(count)]
        source = tf.constant(sources)[sums.replica_id]
        return [
            tf.where(source < 0, tf.zeros_like(rows[0]), rows[tf.maximum(source, 0)])
            for rows in sums.stack(tensors)
        ]

    def algorithm(self, call: Collective, topology: Topology) -> str:
        return self.algorithms[self._joins_workers(topology)]

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
                row = ops.unstack(rows[r], count)[max(source, 0)]
            else:
                row = at.operands[r if source < 0 else source - first]
            return ops.zeros_like(row) if source < 0 else row

        return by_replica(at, received)

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
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
        return next((s for s, target in self.pairs if target == replica), -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broadcast(Route):
    """The value of one replica, which every replica gets."""

    source_replica_id: int  # Whose.

    name = "broadcast"
    is_invariant = True
    algorithms = "wire", "wire"  # workers receive it, and gather nothing

    def source(self, replica: int, num_replicas: int) -> int:
        return self.source_replica_id

    def _only_of_source(self, replica_id: tf.Tensor, tensors: Tensors) -> Tensors:
        is_source = tf.equal(replica_id, self.source_replica_id)
        return [tf.where(is_source, t, tf.zeros_like(t)) for t in tensors]

    def gradient(self, backward: Backward) -> Tensors:
        mine = backward.context.replica_id_in_sync_group
        return self._only_of_source(mine, all_sum(backward.context, backward.dys))

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        # Sums zeros with the value of the source: ``tf.distribute`` has no broadcast.
        return sums.reduce(self._only_of_source(sums.replica_id, tensors), "sum")

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.received_from(self.source_replica_id)]

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(self.source_replica_id, memory, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        others = topology.num_programs - 1
        return BetweenWorkers(BROADCAST, float(others * num_bytes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllToAll(Exchange):
    """The parts of all replicas that are for this one; it is its own transpose."""

    name = "all_to_all"
    has_rows = True, True
    # Each part to the device of its replica; over workers all of them.
    algorithms = "parts", "pack"

    def gradient(self, backward: Backward) -> Tensors:
        return communicate(backward.context, self, backward.dys)

    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        return ops.concat([ops.part(operand, replica, count)] * count)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        me, count = sums.replica_id, sums.num_replicas
        return [
            TENSORS.concat([TENSORS.part(row, me, count) for row in tf.unstack(rows)])
            for rows in sums.stack(tensors)
        ]

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        # Splits where the tensors are, so that only parts leave a memory.
        count, first = at.num_replicas, at.first_replica_id
        rows = at.stacked() if at.num_workers > 1 else None

        def parts(r: int) -> Node:
            ops = at.ops(r)
            held = (
                [(at.ops(s), operand) for s, operand in enumerate(at.operands)]
                if rows is None
                else [(ops, row) for row in ops.unstack(rows[r], count)]
            )
            return ops.concat([on.part(row, first + r, count) for on, row in held])

        return by_replica(at, parts)

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # Every replica sends every other one a part.
        count = topology.num_local_replicas
        for source, target in itertools.product(range(count), repeat=2):
            yield Transfer(source, target, num_bytes / count)
