"""The collectives: all that the library knows of each, over three patterns.

A *reduction* combines the values of all replicas, a *gather* gives every replica the
values of all, and an *exchange* gives each replica what others hold for it. An entry
says what is particular to it. The engine, the plan, traffic, vectorized loops and
backends never compare the names of collectives: they ask the kind. Users call the
functions of ``calls.py``, and of ``reductions.py``. ``docs/howto/collective.md`` adds a
collective.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import tensorflow as tf

from replicator.collectives.differentiable import Backward, communicate, join_rows
from replicator.core.devices import NCCL_DTYPES, RING_DTYPES, Topology
from replicator.errors import StaticShapeError

if TYPE_CHECKING:
    from replicator.core.context import ReplicaContext

    # By replica, its value, and operations where that is.
    Held: TypeAlias = Mapping[int, tuple["Ops", "Node"]]
    Tensors: TypeAlias = Sequence[tf.Tensor]
    Transfers: TypeAlias = Iterator["Transfer"]

# A tensor, or a node's output, or the name of a function's argument.
Node: TypeAlias = Any
# One transfer in the graph of a program: ``BucketLinks`` of ``engine/linker.py``.
Links: TypeAlias = Any
# What the strategies of ``tf.distribute`` have: ``backends/strategy.py``.
Sums: TypeAlias = Any

# What TensorFlow calls the transfers between worker processes.
NOTHING, REDUCE, GATHER, BROADCAST = "", "reduce", "gather", "broadcast"


class Transfer(NamedTuple):
    """Bytes that go from the memory of one replica of a program to that of another."""

    source: int
    target: int
    num_bytes: float


class BetweenWorkers(NamedTuple):
    """What one tensor or bucket costs between worker processes."""

    op: str  # TensorFlow's ``REDUCE``, ``GATHER`` or ``BROADCAST``, or ``NOTHING``.
    num_bytes: float  # Sent by all workers together.


class Ops:
    """Operations on tensors of one type; ``NodeOps`` of the linker emits nodes."""

    def stack(self, values: Sequence[Node]) -> Node:
        return tf.stack(values)

    def unstack(self, value: Node, count: int) -> list[Node]:
        return list(tf.unstack(value, count))

    def concat(self, values: Sequence[Node]) -> Node:
        """Joins the rows."""
        return values[0] if len(values) == 1 else tf.concat(values, axis=0)

    def part(self, value: Node, index: Any, count: int) -> Node:
        """One of ``count`` equal parts of the rows; the index may be a tensor."""
        if count == 1:
            return value
        parts = tf.split(value, count)
        return parts[index] if isinstance(index, int) else tf.gather(parts, index)

    def scale(self, value: Node, factor: float) -> Node:
        return value * tf.cast(factor, value.dtype)

    def zeros_like(self, value: Node) -> Node:
        # Gradients are zeros too, and not None as of a constant.
        nothing = tf.zeros_like(value)
        return tf.where(tf.zeros_like(value, tf.bool), value, nothing)

    def reduce(self, op: str, values: Sequence[Node]) -> Node:
        """The sum (of a mean too), minimum or maximum of some values."""
        name = "sum" if op == "mean" else op
        return getattr(tf, f"reduce_{name}")(tf.stack(values), axis=0)


TENSORS = Ops()


@dataclasses.dataclass(frozen=True)
class CollectiveKind(abc.ABC):
    """One sort of collective. An instance has its parameters, such as the reduction.

    In what follows R = ``count`` is the number of replicas in sync.
    """

    name: ClassVar[str]  # What users call.
    # Whether the result is the same on every replica, bit by bit. The proof that a
    # variable stays mirrored rests on it: a kind that says so and gives replicas
    # different values makes copies diverge unnoticed.
    is_invariant: ClassVar[bool]
    # How R > 1 replicas carry out a call: in one program, over workers; see ``plan``.
    algorithms: ClassVar[tuple[str, str]]
    over_workers: ClassVar[str]  # TensorFlow's transfer between worker processes.
    # Whether small tensors of one call are sent in one bucket. ``Links.operands`` are
    # those of one tensor otherwise.
    is_fused: ClassVar[bool] = False
    # Whether the first dimension of the operand, and of the result, has a meaning. One
    # collective does all iterations of a vectorized loop, whose dimension comes second
    # then.
    has_rows: ClassVar[tuple[bool, bool]] = (False, False)
    keeps_shape: ClassVar[bool] = False  # Whether results have that of the operand.

    def __init_subclass__(cls, *, is_pattern: bool = False, **options: Any) -> None:
        """Checks that a subclass answers everything, unless it is a pattern."""
        super().__init_subclass__(**options)
        answers = {name: getattr(cls, name, None) for name in dir(cls)}
        abstract = {
            name
            for name, answer in answers.items()
            if getattr(answer, "__isabstractmethod__", False)
        }
        missing = sorted(abstract | {*CollectiveKind.__annotations__} - {*answers})
        if missing and not is_pattern:
            raise TypeError(
                f"collective {cls.__name__} does not say {', '.join(missing)}: "
                "a kind answers every question of replicator/collectives/kinds.py, "
                "because nothing else knows what a new collective does"
            )

    def __str__(self) -> str:
        """The call as plans and messages show it: ``all_reduce(sum)``."""
        return f"{self.name}({self.parameter})" if self.parameter else self.name

    @property
    def parameter(self) -> str:
        """What tells calls of this kind apart, as text: the fields with a ``repr``."""
        shown = (field.name for field in dataclasses.fields(self) if field.repr)
        return ", ".join(str(getattr(self, name)) for name in shown)

    @abc.abstractmethod
    def gradient(self, backward: Backward) -> Tensors:
        """The gradients of the operands: d(sum over replicas s of t_s) / d(x_r).

        It calls ``differentiable.communicate``, so it can be differentiated again, and
        is linear in ``dys``, which forward mode relies on.
        """

    @abc.abstractmethod
    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
        """The result where every replica holds the operand of this one.

        With R = 1 that is the collective; otherwise it is what a measuring control has
        in place of communication, and what stands for the result during a trace.
        """

    @abc.abstractmethod
    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        """The collective made of sums, which is all that some backends have."""

    @abc.abstractmethod
    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Emits the collective into a graph: by tensor, the result on each replica."""

    @abc.abstractmethod
    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        """What goes from memory to memory where one program has all replicas."""

    def joins_workers(self, num_local: int, count: int) -> bool:
        """Whether a replica needs what another worker has; all say the same."""
        return True

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        """The type in which tensors leave a memory: their own unless compressed."""
        return dtype

    def algorithm(self, call: Collective, topology: Topology) -> str:
        """Names the way in which R > 1 replicas carry out a call; see ``plan``."""
        return self.algorithms[self._is_between(topology)]

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """What goes over the wire where every worker has a program of its own."""
        op = self.over_workers if self._is_between(topology) else NOTHING
        # W workers reduce whole tensors, of which each has one: TensorFlow's rings have
        # no reduce-scatter. Gathers bring all R operands to each of them, rows padded
        # to the most that one worker has.
        factors = {NOTHING: 0, REDUCE: 2, GATHER: topology.num_replicas, BROADCAST: 1}
        others = topology.num_programs - 1
        return BetweenWorkers(op, float(others * factors[op] * num_bytes))

    def _is_between(self, topology: Topology) -> bool:
        num_local, count = topology.num_local_replicas, topology.num_replicas
        return topology.num_programs > 1 and self.joins_workers(num_local, count)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective call of a step."""

    dtypes: tuple[tf.DType, ...]  # Type of each operand.
    shapes: tuple[tf.TensorShape, ...]  # Static shape of each operand.
    index: int  # Its place in the order of calls.
    kind: CollectiveKind  # What it does.
    num_replicas: int  # Replicas that take part.
    operands: tuple[str, ...]  # One node per tensor, whose only output is the operand.
    markers: tuple[str, ...]  # One node per tensor, which stands for the result.
    # Node whose only output says whether this call communicates at all, a scalar bool;
    # None if it always does.
    needed_if: str | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The nodes whose outputs linking reads."""
        return (*self.operands, *((self.needed_if,) if self.needed_if else ()))


def _by_replica(at: Links, result: Callable[[int], Node]) -> list[tuple[Node, ...]]:
    return [tuple(map(result, range(len(at.operands))))]


def all_sum(context: ReplicaContext, tensors: Tensors) -> list[tf.Tensor]:
    """Sums each tensor over replicas; has gradients."""
    return communicate(context, AllReduce(op="sum"), tensors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reduce(CollectiveKind, is_pattern=True):
    op: str  # ``sum``, ``mean``, ``min`` or ``max``.

    over_workers = REDUCE

    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
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


def _among_holders(backward: Backward, extremes: Tensors, totals: Tensors) -> Tensors:
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
    is_invariant = is_fused = keeps_shape = True
    algorithms = "add_n", "add_n"

    def gradient(self, backward: Backward) -> Tensors:
        if self.op in ("sum", "mean"):
            return communicate(backward.context, AllReduce(op=self.op), backward.dys)
        totals = all_sum(backward.context, backward.dys)
        return _among_holders(backward, backward.ys, totals)

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        is_wider = dtype in (tf.float32, tf.float64)
        return self.wire_dtype if is_wider and self.wire_dtype is not None else dtype

    def algorithm(self, call: Collective, topology: Topology) -> str:
        # On every device at once, or on that of an owner.
        if self.op in ("min", "max"):
            return "pairwise"
        # TensorFlow's collective ops take tensors of known and some size.
        are_static = all(s.is_fully_defined() and s.num_elements() for s in call.shapes)
        if not topology.has_own_gpus or not are_static:
            return self.algorithms[0]  # the same between workers
        flat = "ring" if topology.has_virtual_gpus else "nccl"
        allowed = RING_DTYPES if flat == "ring" else NCCL_DTYPES
        sent = {self.sent_dtype(dtype) for dtype in call.dtypes}
        return flat if sent <= allowed else "add_n"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return at.reduced(self.op)

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # Each memory sends one tensor to the owner, and gets one back. Where they are
        # in several processes, it is one of each.
        for memory in dict.fromkeys(topology.leaders(owner)):
            yield Transfer(memory, owner, num_bytes)
            yield Transfer(owner, memory, num_bytes)


class ReduceScatter(Reduce):
    """A reduction over replicas, of which each replica gets its part of the rows."""

    name = "reduce_scatter"
    is_invariant = False
    has_rows = True, True
    # Each part on the device of its replica; over workers all of them there.
    algorithms = "parts", "add_n"

    def gradient(self, backward: Backward) -> Tensors:
        def all_rows(parts: Tensors) -> Tensors:
            return [*map(join_rows, communicate(backward.context, AllGather(), parts))]

        whole = all_rows(backward.dys)
        if self.op == "sum":
            return whole
        if self.op == "mean":
            count = backward.context.num_replicas_in_sync
            return [dy / tf.cast(count, dy.dtype) for dy in whole]
        return _among_holders(backward, all_rows(backward.ys), whole)

    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
        whole = super().local_result(ops, operand, replica, count)
        return ops.part(whole, replica, count)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        whole = super().by_sums(sums, tensors)
        return [TENSORS.part(t, sums.replica_id, sums.num_replicas) for t in whole]

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        # Splits where the tensors are, so that only parts leave a memory.
        count, first = at.num_replicas, at.first_replica_id
        if at.num_workers > 1:
            (whole,) = at.reduced(self.op)
            return _by_replica(at, lambda r: at.ops(r).part(whole[r], first + r, count))
        partials = at.partials(self.op)

        def own_part(r: int) -> Node:
            parts = [at.ops(memory).part(ref, r, count) for memory, ref in partials]
            result = at.ops(r).reduce(self.op, parts)
            return at.ops(r).scale(result, 1 / count) if self.op == "mean" else result

        return _by_replica(at, own_part)

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # Each memory sends every replica its part.
        count = topology.num_local_replicas
        for memory in dict.fromkeys(topology.memories):
            for replica in range(count):
                yield Transfer(memory, replica, num_bytes / count)


class Gather(CollectiveKind, is_pattern=True):
    """The values of all replicas, which every replica gets."""

    is_invariant = True
    over_workers = GATHER

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # All operands go to the owner, and all of them come back.
        replicas = range(topology.num_local_replicas)
        yield from (Transfer(replica, owner, num_bytes) for replica in replicas)
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(owner, memory, num_bytes * len(replicas))


class AllGather(Gather):
    """A stack of the values of all replicas."""

    name = "all_gather"
    has_rows = False, True
    algorithms = "pack", "pack"  # on the device of an owner

    def gradient(self, backward: Backward) -> Tensors:
        mine = backward.context.replica_id_in_sync_group
        return [dy[mine] for dy in all_sum(backward.context, backward.dys)]

    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
        return ops.stack([operand] * count)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        return sums.stack(tensors)

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        return [at.stacked()]


class AllConcat(Gather):
    """The rows of all replicas: how sparse tensors are summed.

    Their numbers may differ between replicas, but not between the tensors of one call.
    """

    name = "all_concat"
    has_rows = True, True
    algorithms = "concat", "concat"  # on the device of an owner

    def gradient(self, backward: Backward) -> Tensors:
        num_rows = tf.shape(backward.xs[0])[0]
        (counts,) = backward.context.communicate(AllGather(), [num_rows])
        mine = backward.context.replica_id_in_sync_group
        begin = tf.reduce_sum(counts[:mine])
        end = begin + counts[mine]
        return [dy[begin:end] for dy in all_sum(backward.context, backward.dys)]

    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
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
    keeps_shape = True
    over_workers = GATHER  # of all tensors: R times what they need

    @abc.abstractmethod
    def received(self, ops: Ops, held: Held, replica: int, count: int) -> Node:
        """What a replica gets of the values of replicas."""

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        count, first, num_local = at.num_replicas, at.first_replica_id, len(at.operands)
        own = {first + r: (at.ops(r), x) for r, x in enumerate(at.operands)}
        is_gathered = at.num_workers > 1 and self.joins_workers(num_local, count)
        rows = at.stacked() if is_gathered else None

        def result(r: int) -> Node:
            ops, held = at.ops(r), own
            if rows is not None:
                held = {s: (ops, x) for s, x in enumerate(ops.unstack(rows[r], count))}
            return self.received(ops, held, first + r, count)

        return _by_replica(at, result)


class Route(Exchange, is_pattern=True):
    """An exchange that gives each replica the value of one.

    Replicas of one program read their sources. Over workers all values are gathered, if
    a replica reads one of another worker. The gradient is sent back to the source.
    """

    algorithms = "wire", "pack"

    @abc.abstractmethod
    def source(self, replica: int, num_replicas: int) -> int:
        """The replica whose value a replica gets; -1 for zeros."""

    def _pairs(self, count: int) -> list[tuple[int, int]]:
        """Replicas and their sources, where they have one."""
        both = [(replica, self.source(replica, count)) for replica in range(count)]
        return [(replica, source) for replica, source in both if source >= 0]

    def gradient(self, backward: Backward) -> Tensors:
        back = self._pairs(backward.context.num_replicas_in_sync)
        return communicate(backward.context, Permute(pairs=tuple(back)), backward.dys)

    def received(self, ops: Ops, held: Held, replica: int, count: int) -> Node:
        source = self.source(replica, count)
        if source >= 0:
            return held[source][1]
        # Zeros are made of what was gathered, too: a worker that did not use it would
        # not take part, and the others would wait for it forever.
        return ops.zeros_like(held[replica][1])

    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
        # Of several replicas, a control keeps the operand on those that get zeros, too.
        is_kept = count > 1 or self.source(0, 1) >= 0
        return operand if is_kept else ops.zeros_like(operand)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        sources = [self.source(r, sums.num_replicas) for r in range(sums.num_replicas)]
        source = tf.constant(sources)[sums.replica_id]
        return [
            tf.where(source < 0, tf.zeros_like(rows[0]), rows[tf.maximum(source, 0)])
            for rows in sums.stack(tensors)
        ]

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        for replica, source in self._pairs(topology.num_replicas):
            yield Transfer(source, replica, num_bytes)

    def joins_workers(self, num_local: int, count: int) -> bool:
        return any(s // num_local != r // num_local for r, s in self._pairs(count))


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
    over_workers = BROADCAST

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


class AllToAll(Exchange):
    """The parts of all replicas that are for this one; it is its own transpose."""

    name = "all_to_all"
    has_rows = True, True
    # Each part to the device of its replica; over workers all of them.
    algorithms = "parts", "pack"

    def gradient(self, backward: Backward) -> Tensors:
        return communicate(backward.context, self, backward.dys)

    def received(self, ops: Ops, held: Held, replica: Any, count: int) -> Node:
        # Splits where the tensors are, so that only parts leave a memory.
        return ops.concat([on.part(x, replica, count) for on, x in held.values()])

    def local_result(self, ops: Ops, operand: Node, replica: Any, count: int) -> Node:
        return ops.concat([ops.part(operand, replica, count)] * count)

    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        me, count = sums.replica_id, sums.num_replicas
        return [
            TENSORS.concat([TENSORS.part(row, me, count) for row in tf.unstack(rows)])
            for rows in sums.stack(tensors)
        ]

    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        # Every replica sends every other one a part.
        count = topology.num_local_replicas
        for source, target in itertools.product(range(count), repeat=2):
            yield Transfer(source, target, num_bytes / count)
