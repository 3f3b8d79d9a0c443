"""What a kind can use while it emits itself: operations, and the replicas of a program.

``Ops`` are few enough to exist twice: as tensors of TensorFlow, and as nodes of a graph
that is linked without Python graph objects (``engine/link/node_ops.py``). ``Links`` is
what the linker offers for one transfer (``engine/link/bucket_links.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A tensor, or a node's output, or the name of a function's argument.
Node: TypeAlias = Any


class Ops(Protocol):
    """Operations on values of one type on one device."""

    def stack(self, values: Sequence[Node]) -> Node:
        """Joins along a new first dimension."""

    def unstack(self, value: Node, count: int) -> list[Node]:
        """Undoes ``stack``."""

    def concat(self, values: Sequence[Node]) -> Node:
        """Joins the rows: along the first dimension."""

    def part(self, value: Node, index: Any, count: int, *, axis: int = 0) -> Node:
        """One of ``count`` equal parts along an axis."""

    def scale(self, value: Node, factor: float) -> Node:
        """The product with a number."""

    def zeros_like(self, value: Node) -> Node:
        """Zeros of the same shape and type."""

    def reduce(self, op: str, values: Sequence[Node]) -> Node:
        """The sum (of a mean too), minimum or maximum of some values."""


class Links(Protocol):
    """One transfer of a collective in the graph of one program.

    Attributes:
      num_replicas: Replicas of the job.
      first_replica_id: Id in the job of this program's first replica.
      num_workers: Programs that run side by side; 1 if this one has all replicas.
    """

    num_replicas: int
    first_replica_id: int
    num_workers: int

    @property
    def operands(self) -> Sequence[Node]:
        """By replica of this program, the operand, if it is a single tensor."""

    def ops(self, replica: int) -> Ops:
        """Emits nodes on the device of a replica of this program."""

    def reduced(self, op: str, wire_dtype: tf.DType | None) -> list[tuple[Node, ...]]:
        """Reduces each tensor of the bucket over all replicas of the job.

        Returns:
          By tensor, the result by replica of this program.
        """

    def partials(self, op: str) -> list[tuple[int, Node]]:
        """Reduces among replicas that share memory, where others are elsewhere.

        Returns:
          A replica and a tensor on its device, for each memory; if nothing leaves the
          only memory, for each replica.
        """

    def stacked(self) -> tuple[Node, ...]:
        """Stacks the operands of all replicas of the job.

        Every program must use it, for any of its replicas: what nobody uses is not run,
        and the other programs would wait for this one forever.

        Returns:
          The stack, by replica of this program.
        """

    def joined(self) -> tuple[Node, ...]:
        """Joins the rows of all replicas of the job; by replica of this program."""

    def received_from(self, replica_id: int) -> tuple[Node, ...]:
        """The operand of one replica of the job; by replica of this program."""


def by_replica(at: Links, result: Callable[[int], Node]) -> list[tuple[Node, ...]]:
    """What ``link`` returns for one tensor, of the result on each replica."""
    return [tuple(result(replica) for replica in range(len(at.operands)))]


class TensorOps:
    """``Ops`` as tensors."""

    def stack(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """See ``Ops``."""
        return tf.stack(values)

    def unstack(self, value: tf.Tensor, count: int) -> list[tf.Tensor]:
        """See ``Ops``."""
        return list(tf.unstack(value, count))

    def concat(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """See ``Ops``."""
        return tf.concat(values, axis=0)

    def part(
        self, value: tf.Tensor, index: Any, count: int, *, axis: int = 0
    ) -> tf.Tensor:
        """See ``Ops``; the index may be a tensor."""
        if isinstance(index, int):
            return tf.split(value, count, axis=axis)[index]
        return tf.gather(tf.stack(tf.split(value, count, axis=axis)), index)

    def scale(self, value: tf.Tensor, factor: float) -> tf.Tensor:
        """See ``Ops``."""
        return value * tf.cast(factor, value.dtype)

    def zeros_like(self, value: tf.Tensor) -> tf.Tensor:
        """See ``Ops``; gradients are zeros too, and not None as of a constant."""
        nothing = tf.zeros_like(value)
        return tf.where(tf.zeros_like(value, tf.bool), value, nothing)

    def reduce(self, op: str, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """See ``Ops``."""
        stacked = tf.stack(values)
        return {
            "sum": tf.reduce_sum,
            "mean": tf.reduce_sum,
            "min": tf.reduce_min,
            "max": tf.reduce_max,
        }[op](stacked, axis=0)


TENSORS = TensorOps()
