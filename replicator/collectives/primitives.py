"""MPI-like primitives for step functions, over nests, with gradients.

Every replica must call the same collectives in the same order. Gradients are those of
``differentiable.py``, of every order; ``tf.vectorized_map``, ``tape.jacobian`` and
``tf.autodiff.ForwardAccumulator`` work too (``vectorized.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import compression as compression_lib
from replicator.collectives import differentiable, reducible
from replicator.step import context as context_lib
from replicator.step.tensors import tensor_of
from replicator.validation.arguments import shown
from replicator.validation.integers import is_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.step.context import ReplicaContext

# AutoGraph would convert every call of the library again: most of the time of tracing a
# collective. No Python control flow depends on tensors here.
_AS_WRITTEN = tf.autograph.experimental.do_not_convert


@_AS_WRITTEN
def all_reduce(value: Any, op: str = "sum", *, compression: str | None = None) -> Any:
    """Combines a value over all replicas.

    Args:
      value: A nest of tensors of the same structure and shapes on every replica;
        ``tf.IndexedSlices`` leaves stay sparse under ``sum`` and ``mean``, and may
        have different numbers of rows on every replica. Numbers of
        every type; integer sums wrap around like TensorFlow's; bool under ``min``
        (all) and ``max`` (any).
      op: ``sum``, ``mean``, ``min`` or ``max``.
      compression: ``bfloat16`` or ``float16`` lets float32 and float64 cross from one
        memory to another in 16 bits; see ``compression.py``. Gradients of the
        collective travel in full width.

    Returns:
      A nest of the same structure and shapes, equal on every replica.

    Raises:
      CollectiveContextError: Called outside a step function.
      OptimizerOptionError: Unknown ``compression``.
      TypeError: A leaf that is no dense tensor.
      ValueError: Unknown ``op``, the mean of integers, the minimum of complex numbers,
        or a type that is no number.
    """
    context = context_lib.require("all_reduce")
    context_lib.check_reduce_op(op)
    wire_dtype = compression_lib.check(compression)
    leaves = [
        leaf
        if isinstance(leaf, tf.IndexedSlices)
        else tensor_of(leaf, "all_reduce() takes a nest of dense tensors")
        for leaf in tf.nest.flatten(value)
    ]
    for leaf in leaves:
        reducible.check(leaf, op, "all_reduce")
    dense = [leaf for leaf in leaves if not isinstance(leaf, tf.IndexedSlices)]
    reduced = iter(_all_reduce_dense(context, dense, op, wire_dtype))
    merged = [
        _all_reduce_sparse(context, leaf, op, wire_dtype)
        if isinstance(leaf, tf.IndexedSlices)
        else next(reduced)
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(value, merged)


def all_sum(value: Any) -> Any:
    """Sums a nest over all replicas; see ``all_reduce``."""
    return all_reduce(value, "sum")


def all_mean(value: Any) -> Any:
    """Averages a nest over all replicas (sum / num_replicas); see ``all_reduce``."""
    return all_reduce(value, "mean")


def all_min(value: Any) -> Any:
    """Takes the elementwise minimum over all replicas; see ``all_reduce``."""
    return all_reduce(value, "min")


def all_max(value: Any) -> Any:
    """Takes the elementwise maximum over all replicas; see ``all_reduce``."""
    return all_reduce(value, "max")


@_AS_WRITTEN
def all_gather(value: Any) -> Any:
    """Stacks a value over replicas, in the order of ``replica_id``.

    Args:
      value: A nest of dense tensors of any type, with the same shapes on every replica.

    Returns:
      A nest of tensors of shape ``[num_replicas] + dims``, equal on every replica.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is no dense tensor.
      ValueError: A leaf is ``tf.IndexedSlices``.
    """
    context = context_lib.require("all_gather")
    for leaf in tf.nest.flatten(value):
        if isinstance(leaf, tf.IndexedSlices):
            raise ValueError(  # noqa: TRY004 (as all_reduce says it)
                "all_gather of tf.IndexedSlices would have to stack dense tensors; use "
                "tf.convert_to_tensor on the slices, or gather their values and indices"
            )

    tensors = [
        tensor_of(leaf, "all_gather() takes a nest of dense tensors")
        for leaf in tf.nest.flatten(value)
    ]
    return tf.nest.pack_sequence_as(value, differentiable.all_gather(context, tensors))


@_AS_WRITTEN
def broadcast(value: Any, source_replica_id: int = 0) -> Any:
    """Gives every replica the value of one replica.

    Args:
      value: A nest of tensors of any type, or ``tf.IndexedSlices``, with the same
        shapes on every replica; it is evaluated on all of them.
      source_replica_id: A Python int in [0, num_replicas_in_sync): its place among the
        replicas that are in sync.

    Returns:
      A nest of the same structure and shapes, equal on every replica.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: ``source_replica_id`` is not an int, or a leaf is no dense tensor.
      ValueError: ``source_replica_id`` is out of range.
    """
    context = context_lib.require("broadcast")
    if not is_integer(source_replica_id):
        raise TypeError(
            f"source_replica_id {shown(source_replica_id)} must be a Python int: the "
            "source is linked when the step is traced"
        )
    count = context.num_replicas_in_sync
    if not 0 <= source_replica_id < count:
        raise ValueError(
            f"source_replica_id {shown(source_replica_id)} is out of range: there are "
            f"{count} replicas; use 0 to {count - 1}"
        )

    leaves = tf.nest.flatten(value)
    # Slices travel as their two tensors; their dense shape is known everywhere.
    parts = [
        tensor_of(part, "broadcast() takes a nest of dense tensors")
        for leaf in leaves
        for part in (
            (leaf.values, leaf.indices)
            if isinstance(leaf, tf.IndexedSlices)
            else (leaf,)
        )
    ]
    sent = iter(differentiable.broadcast(context, parts, source_replica_id))
    received = [
        tf.IndexedSlices(next(sent), next(sent), leaf.dense_shape)
        if isinstance(leaf, tf.IndexedSlices)
        else next(sent)
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(value, received)


def _all_reduce_dense(
    context: ReplicaContext,
    tensors: Sequence[tf.Tensor],
    op: str,
    wire_dtype: tf.DType | None,
) -> list[tf.Tensor]:
    reduced = differentiable.all_reduce(
        context,
        [tf.cast(t, reducible.stand_in(t.dtype)) for t in tensors],
        op,
        wire_dtype,
    )
    return [tf.cast(y, x.dtype) for x, y in zip(tensors, reduced, strict=True)]


def _all_reduce_sparse(
    context: ReplicaContext,
    slices: tf.IndexedSlices,
    op: str,
    wire_dtype: tf.DType | None,
) -> tf.IndexedSlices:
    """Joins the slices of all replicas: a sum of sparse tensors is their union.

    Replicas may have different numbers of slices, as batches of mixed lengths do.
    """
    if op not in ("sum", "mean"):
        raise ValueError(
            f"all_reduce of tf.IndexedSlices knows 'sum' and 'mean', not {op!r}; "
            "use tf.convert_to_tensor on the slices first"
        )
    dtype = slices.values.dtype
    narrow = tf.cast(slices.values, context_lib.wire_of(dtype, wire_dtype))
    values, indices = differentiable.all_concat(context, [narrow, slices.indices])
    values = tf.cast(values, dtype)
    if op == "mean":
        values /= tf.cast(context.num_replicas_in_sync, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
