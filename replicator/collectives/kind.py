"""Kinds: all that the library knows of a collective, asked in one place.

The engine, the plan, traffic, vectorized loops and backends never compare the names of
collectives: they ask the kind. An answer that is missing is an error when the class is
made, and never the answer of another kind.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from replicator.core.context import ReplicaContext
    from replicator.core.topology import Topology

    Tensors: TypeAlias = Sequence[tf.Tensor]
    Transfers: TypeAlias = Iterator["Transfer"]


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


class Backward(NamedTuple):
    context: ReplicaContext
    xs: Tensors  # Operands.
    ys: Tensors  # Results.
    dys: Tensors  # Gradients of the results.


class CollectiveKind(abc.ABC):
    """One sort of collective. An instance has its parameters, such as the reduction.

    Subclasses are frozen dataclasses, most of them over one of the three patterns of
    ``kinds.py``. In what follows R is the number of replicas in sync, and b the bytes
    of one operand.
    """

    name: ClassVar[str]  # What users call.
    # Whether the result is the same on every replica, bit by bit. The proof that a
    # variable stays mirrored rests on it: a kind that says so and gives replicas
    # different values makes copies diverge unnoticed.
    is_invariant: ClassVar[bool]
    # Whether small tensors of one call are sent in one bucket. ``Links.operands`` are
    # those of one tensor otherwise.
    is_fused: ClassVar[bool] = False
    # Whether the first dimension of the operand, and of the result, has a meaning. One
    # collective does all iterations of a vectorized loop, whose dimension comes second
    # then.
    has_rows: ClassVar[tuple[bool, bool]] = (False, False)
    # How R > 1 replicas carry out a call: in one program, over workers; see ``plan``.
    algorithms: ClassVar[tuple[str, str]]

    def __init_subclass__(cls, *, is_pattern: bool = False, **options: Any) -> None:
        """Checks that a subclass answers everything, unless it is a pattern."""
        super().__init_subclass__(**options)
        said = {name: getattr(cls, name, None) for name in dir(cls)}
        missing = sorted(
            name
            for name in {"name", "is_invariant", "algorithms", *said}
            if name not in said or getattr(said[name], "__isabstractmethod__", False)
        )
        if missing and not is_pattern:
            raise TypeError(
                f"collective {cls.__name__} does not say {', '.join(missing)}: "
                "a kind answers every question of replicator/collectives/kind.py, "
                "because nothing else knows what a new collective does"
            )

    def __str__(self) -> str:
        """The call as plans and messages show it: ``all_reduce(sum)``."""
        return f"{self.name}({self.parameter})" if self.parameter else self.name

    @property
    def parameter(self) -> str:
        """What tells calls of this kind apart, as text: the fields with a ``repr``."""
        shown = (f.name for f in dataclasses.fields(cast("Any", self)) if f.repr)
        return ", ".join(str(getattr(self, name)) for name in shown)

    @abc.abstractmethod
    def result_shape(self, shape: tf.TensorShape, count: int) -> tf.TensorShape:
        """Static shape of the result on R = ``count`` replicas."""

    @abc.abstractmethod
    def gradient(self, backward: Backward) -> Tensors:
        """The gradients of the operands: d(sum over replicas s of t_s) / d(x_r).

        It calls ``differentiable.communicate``, so it can be differentiated again, and
        is linear in ``dys``, which forward mode relies on.
        """

    @abc.abstractmethod
    def local_result(self, ops: Ops, operand: Any, replica: Any, count: int) -> Any:
        """The result where every replica holds the operand of this one.

        With R = 1 that is the collective; otherwise it is what a measuring control has
        in place of communication, and what stands for the result during a trace.
        """

    @abc.abstractmethod
    def by_sums(self, sums: Sums, tensors: Tensors) -> list[tf.Tensor]:
        """The collective made of sums, which is all that some backends have."""

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        """The type in which tensors leave a memory: their own unless compressed."""
        return dtype

    def algorithm(self, call: Collective, topology: Topology) -> str:
        """Names the way in which R > 1 replicas carry out a call; see ``plan``."""
        del call
        return self.algorithms[topology.num_programs > 1]

    @abc.abstractmethod
    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Emits the collective into the graph of a program."""

    @abc.abstractmethod
    def transfers(self, num_bytes: int, owner: int, topology: Topology) -> Transfers:
        """What goes from memory to memory where one program has all replicas."""

    @abc.abstractmethod
    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """What goes over the wire where every worker has a program of its own."""


# A tensor, or a node's output, or the name of a function's argument.
Node: TypeAlias = Any
# One transfer in the graph of a program: ``BucketLinks`` of ``engine/linker.py``.
Links: TypeAlias = Any


def by_replica(at: Links, result: Callable[[int], Node]) -> list[tuple[Node, ...]]:
    """What ``link`` returns for one tensor, of the result on each replica."""
    return [tuple(result(replica) for replica in range(len(at.operands)))]


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

    def result_shape(self, position: int) -> tf.TensorShape:
        """Static shape of the result for one tensor."""
        return self.kind.result_shape(self.shapes[position], self.num_replicas)


# The strategies of ``tf.distribute`` sum and average. A value of one replica reaches
# the others as a sum with zeros, which costs R times the bytes of a gather.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    num_replicas: int  # R, at least 2.
    replica_id: tf.Tensor  # Of this replica, a scalar int32.
    # Takes tensors and ``sum`` or ``mean``; reduces each over replicas.
    reduce: Callable[[Tensors, str], list[tf.Tensor]]
    # Whether every shape has to be known when a step is traced.
    has_static_shapes: bool = False

    def stack(self, tensors: Tensors) -> list[tf.Tensor]:
        """Stacks each tensor over replicas: the sum of zeros with the own slice."""
        mine = tf.equal(tf.range(self.num_replicas), self.replica_id)
        wide = []
        for tensor in tensors:
            mask = tf.reshape(mine, [self.num_replicas] + [1] * len(tensor.shape))
            value = tf.expand_dims(tensor, 0)
            wide.append(tf.where(mask, value, tf.zeros_like(value)))
        return self.reduce(wide, "sum")


def positions_by_dtype(tensors: Iterable[Any]) -> dict[tf.DType, list[int]]:
    """The positions of tensors by type; types in the order of their first tensor."""
    positions: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        positions.setdefault(tensor.dtype, []).append(position)
    return positions


def num_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """The static size of a tensor; 0 where a dimension is unknown."""
    if not shape.is_fully_defined():
        return 0
    return int(shape.num_elements() * dtype.size)


def fill(
    keys: Sequence[Hashable],
    sizes: Sequence[int],
    *,
    limit: int,
    least: int | None = None,
    alone_from: int | None = None,
) -> list[tuple[int, ...]]:
    """Puts tensors of one key into buckets of a limited size.

    With a least size, buckets become smaller towards the end. A reduction that starts
    as soon as its operands are computed hides behind what is computed after them; the
    last one hides behind nothing. So a bucket is full at half of what is left of its
    key, within bounds.
    """
    left: collections.Counter[Hashable] = collections.Counter()
    for key, size in zip(keys, sizes, strict=True):
        left[key] += size if size < limit else 0
    buckets: list[tuple[int, ...]] = []
    is_open: dict[Hashable, tuple[list[int], int, int]] = {}
    for position, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        if alone_from is not None and not 0 < size < alone_from:
            buckets.append((position,))
            continue
        full_at = limit if least is None else min(max(left[key] // 2, least), limit)
        members, total, most = is_open.pop(key, ([], 0, full_at))
        if members and total >= (least or 0) and total + size > most:
            buckets.append(tuple(members))
            members, total, most = [], 0, full_at
        left[key] -= size
        members, total = [*members, position], total + size
        if least is not None and total >= most:
            buckets.append(tuple(members))
        else:
            is_open[key] = members, total, most
    buckets += [tuple(members) for members, _, _ in is_open.values()]
    return buckets if least is None else sorted(buckets, key=max)


def pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The elements of some tensors of one type as one vector."""
    flat = [v if v.shape.rank == 1 else tf.reshape(v, [-1]) for v in values]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def unpack(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """The tensors of which a vector was packed; their shapes are static."""
    parts = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [
        part if shape.rank == 1 else tf.reshape(part, shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
