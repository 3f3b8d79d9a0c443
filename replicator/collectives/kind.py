"""Kinds: all that the library knows of a collective, asked in one place.

The engine, the plan, traffic, vectorized loops and backends never compare the names of
collectives: they ask the kind. So an answer that is missing is an error when the class
is made, and never the answer of another kind.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import tensorflow as tf

    from replicator.collectives.linking import Links, Node, Ops
    from replicator.collectives.operands import Operands
    from replicator.collectives.sums import Sums
    from replicator.placement.topology import Topology
    from replicator.step.context import ReplicaContext

NOTHING, REDUCE, GATHER, BROADCAST = "", "reduce", "gather", "broadcast"


class Transfer(NamedTuple):
    """Bytes that go from the memory of one replica of a program to that of another."""

    source: int
    target: int
    num_bytes: float


class BetweenWorkers(NamedTuple):
    """What one tensor or bucket costs between worker processes."""

    # ``REDUCE``, ``GATHER`` or ``BROADCAST``: the operation of TensorFlow, or
    # ``NOTHING`` if nothing is sent.
    op: str
    num_bytes: float  # Sent by all workers together.


class CollectiveKind(abc.ABC):
    """One sort of collective. An instance has its parameters, such as the reduction.

    Subclasses are frozen dataclasses, one per file of ``kinds/``, which also has the
    function that users call. In what follows R is the number of replicas in sync, and
    b the bytes of one operand.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Checks that a subclass answers everything."""
        super().__init_subclass__(**options)
        missing = [
            name
            for name in CollectiveKind.__abstractmethods__
            if getattr(getattr(cls, name), "__isabstractmethod__", False)
        ]
        if missing:
            raise TypeError(
                f"collective {cls.__name__} does not say {', '.join(sorted(missing))}: "
                "a kind answers every question of replicator/collectives/kind.py, "
                "because nothing else knows what a new collective does"
            )

    def __str__(self) -> str:
        """The call as plans and messages show it: ``all_reduce(sum)``."""
        return f"{self.name}({self.parameter})" if self.parameter else self.name

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What users call."""

    @property
    @abc.abstractmethod
    def parameter(self) -> str:
        """What tells calls of this kind apart, as text; empty if nothing does."""

    @property
    @abc.abstractmethod
    def is_invariant(self) -> bool:
        """Whether the result is the same on every replica, bit by bit.

        The proof that a variable stays mirrored rests on it: a kind that says so and
        gives replicas different values makes copies diverge unnoticed.
        """

    @property
    @abc.abstractmethod
    def is_fused(self) -> bool:
        """Whether small tensors of one call are sent in one bucket.

        ``Links.operands`` are those of one tensor otherwise.
        """

    @abc.abstractmethod
    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        """Static shape of the result, whose type is that of the operand."""

    @abc.abstractmethod
    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """The gradients of the operands: d(sum over replicas s of t_s) / d(x_r).

        It calls ``differentiable.communicate``, so it can be differentiated again, and
        is linear in ``dys``, which forward mode relies on.
        """

    @abc.abstractmethod
    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """One collective for all iterations of a vectorized loop.

        Args:
          context: Of the replica.
          stacked: ``[iterations] + shape`` of the operand.

        Returns:
          ``[iterations] + shape`` of the result.
        """

    @abc.abstractmethod
    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The result where every replica holds the operand of this one.

        With R = 1 that is the collective; otherwise it is what a measuring control has
        in place of communication, and what stands for the result during a trace.
        """

    @abc.abstractmethod
    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The collective made of sums, which is all that some backends have."""

    @abc.abstractmethod
    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        """The type in which tensors leave a memory: their own unless compressed."""

    @abc.abstractmethod
    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Names the way in which R > 1 replicas carry out a call; see ``plan``."""

    @abc.abstractmethod
    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Emits the collective into the graph of a program."""

    @abc.abstractmethod
    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """What goes from memory to memory where one program has all replicas."""

    @abc.abstractmethod
    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """What goes over the wire where every worker has a program of its own."""


class OfOperandShape:
    """An answer of kinds whose result has the shape of the operand."""

    def result_shape(self, shape: tf.TensorShape, num_replicas: int) -> tf.TensorShape:
        """That of the operand."""
        del num_replicas
        return shape


class OfOwnType:
    """An answer of kinds that send tensors as they are."""

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        """Its own."""
        return dtype


def gathered_bytes(num_bytes: int, topology: Topology) -> float:
    """Bytes that a ring of W workers sends to gather R operands: (W - 1) R b."""
    return (topology.num_programs - 1) * topology.num_replicas * float(num_bytes)


def reduced_bytes(num_bytes: int, topology: Topology) -> float:
    """Bytes that a ring of W workers sends to reduce and distribute: 2 (W - 1) b.

    Replicas of one worker are reduced before, so their number does not matter.
    """
    return 2.0 * (topology.num_programs - 1) * num_bytes
