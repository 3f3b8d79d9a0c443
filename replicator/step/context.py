"""The replica context: what code inside a step may ask about its replica."""

from __future__ import annotations

import abc
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.errors import CollectiveContextError
from replicator.validation.arguments import is_one_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REDUCE_OPS = ("sum", "mean", "min", "max")


class ReplicaContext(abc.ABC):
    """One replica's view while its step function runs or is traced.

    The collective methods take and return flat lists of dense tensors; users call the
    functions of ``collectives/primitives.py``, which accept nests and have gradients.

    Attributes:
      num_replicas: Copies of the computation.
      num_replicas_in_sync: Copies whose updates are aggregated each step.
      num_logical_devices: Devices that one replica is split over.
    """

    num_replicas: int
    num_replicas_in_sync: int
    num_logical_devices: int = 1

    @property
    @abc.abstractmethod
    def replica_id(self) -> tf.Tensor:
        """A scalar int32 tensor in [0, num_replicas)."""

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """Place among the replicas in sync, which collectives count; scalar int32.

        Sync groups are consecutive: the first holds replicas 0, 1, ...
        """
        if self.num_replicas == self.num_replicas_in_sync:
            return self.replica_id
        return tf.math.floormod(self.replica_id, self.num_replicas_in_sync)

    @abc.abstractmethod
    def all_reduce(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Combines each tensor over replicas by one of ``REDUCE_OPS``."""

    def compressed_all_reduce(
        self, tensors: Sequence[tf.Tensor], op: str, wire_dtype: tf.DType
    ) -> list[tf.Tensor]:
        """An ``all_reduce`` whose wider floating tensors are sent in 16 bits.

        Results have the types of the operands. Where a backend does not say otherwise,
        the reduction itself is done in ``wire_dtype``.
        """
        if self.num_replicas_in_sync == 1:
            return list(tensors)  # nothing is sent
        narrow = [tf.cast(t, wire_of(t.dtype, wire_dtype)) for t in tensors]
        reduced = self.all_reduce(narrow, op)
        return [tf.cast(y, x.dtype) for x, y in zip(tensors, reduced, strict=True)]

    def all_reduce_if(
        self,
        predicate: tf.Tensor,
        tensors: Sequence[tf.Tensor],
        op: str,
        wire_dtype: tf.DType | None = None,
    ) -> list[tf.Tensor]:
        """An ``all_reduce`` whose results are used only where a predicate is true.

        The predicate is a scalar bool, identical on every replica. Where it is false, a
        backend need not communicate; unless it says otherwise, it does.
        """
        del predicate
        if wire_dtype is None:
            return self.all_reduce(tensors, op)
        return self.compressed_all_reduce(tensors, op, wire_dtype)

    @abc.abstractmethod
    def all_gather(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Stacks each tensor over replicas: shape ``[num_replicas] + dims``."""

    @abc.abstractmethod
    def all_concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Joins the rows (first dimension) of all replicas, by ``replica_id``.

        The number of rows may differ between replicas, but not between the tensors of
        one call.
        """

    @abc.abstractmethod
    def broadcast(
        self, tensors: Sequence[tf.Tensor], source_replica_id: int
    ) -> list[tf.Tensor]:
        """Gives every replica the tensors of one replica."""

    def collective_of(self, marker: str) -> Any:
        """The collective call that a node of the graph stands for.

        Args:
          marker: Name of a node in the body of a vectorized loop.

        Returns:
          An ``engine.graph.trace.Collective``, or None if the node stands for none.

        Raises:
          CollectiveControlFlowError: It stands for one that no loop can vectorize.
        """
        del marker

    @abc.abstractmethod
    def logical_device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Places ops on one of this replica's devices; see ``logical_device``."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.contexts: list[ReplicaContext] = []
        self.replicators: list[Any] = []


_STACK = _Stack()


@contextlib.contextmanager
def enter(context: ReplicaContext) -> Iterator[ReplicaContext]:
    """Makes ``context`` the current one in this thread; used by backends."""
    _STACK.contexts.append(context)
    try:
        yield context
    finally:
        _STACK.contexts.pop()


@contextlib.contextmanager
def enter_replicator(replicator: Any) -> Iterator[None]:
    """Makes ``replicator`` the one whose ``context()`` is open in this thread."""
    _STACK.replicators.append(replicator)
    try:
        yield
    finally:
        _STACK.replicators.pop()


def current_replicator() -> Any:
    """The replicator whose ``context()`` is open in this thread, or None."""
    return _STACK.replicators[-1] if _STACK.replicators else None


def get_replica_context() -> ReplicaContext:
    """Returns the context of the running replica.

    Raises:
      CollectiveContextError: Called outside a step function.
    """
    return require("get_replica_context")


def in_replica_context() -> bool:
    """Tells whether a step function is running or being traced in this thread."""
    return bool(_STACK.contexts)


def require(caller: str) -> ReplicaContext:
    """Returns the current context or explains that ``caller`` needs one.

    Raises:
      CollectiveContextError: No step function is running.
    """
    if not _STACK.contexts:
        raise CollectiveContextError(
            f"{caller}() was called in cross-replica context, but it needs a replica: "
            "call it inside the step function that you pass to run(); outside, use "
            "repl.reduce(op, per_replica_value) on what run() returns"
        )
    return _STACK.contexts[-1]


def check_reduce_op(op: Any) -> str:
    """Returns ``op`` if it is a known reduction.

    Raises:
      ValueError: Anything else; the message lists what is allowed.
    """
    if not is_one_of(op, REDUCE_OPS):
        raise ValueError(
            f"unknown reduction {shown(op)}; use one of "
            f"{', '.join(map(repr, REDUCE_OPS))}"
        )
    return op


def check_mean(dtype: tf.DType, caller: str) -> None:
    """Refuses the mean of integers.

    Raises:
      ValueError: Not a floating or complex type.
    """
    if not (dtype.is_floating or dtype.is_complex):
        raise ValueError(
            f"{caller} 'mean' of {dtype.name} would have to round; use 'sum', or "
            "tf.cast the value to a floating type first"
        )


def wire_of(dtype: tf.DType, wire_dtype: tf.DType | None) -> tf.DType:
    """The type in which tensors of ``dtype`` travel when ``wire_dtype`` is asked for.

    Only wider real floating types are compressed.
    """
    is_wider = dtype in (tf.float32, tf.float64)
    return wire_dtype if is_wider and wire_dtype is not None else dtype
