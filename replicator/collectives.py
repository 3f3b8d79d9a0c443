"""MPI-like primitives for step functions, over nests, with gradients.

Every replica must call the same collectives in the same order. Gradients follow
Buchlovsky et al. 2019 and ``tf.distribute``: the gradient of an all-sum is an all-sum
of the gradients, that of an all-mean an all-mean; the gradient of an all-gather is the
replica's own slice of the summed gradient; that of a broadcast is the sum delivered to
the source; that of a minimum or maximum is the sum delivered to the replicas that hold
the extreme, in equal shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import compression as compression_lib
from replicator import context as context_lib
from replicator import reducible
from replicator.integers import is_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.context import ReplicaContext

    FlatFn = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
    FlatGradFn = Callable[
        [Sequence[tf.Tensor], Sequence[tf.Tensor], Sequence[tf.Tensor]],
        Sequence[tf.Tensor],
    ]

# AutoGraph would convert every call of the library again: most of the time of tracing a
# collective. No Python control flow depends on tensors here.
_AS_WRITTEN = tf.autograph.experimental.do_not_convert


@_AS_WRITTEN
def all_reduce(value: Any, op: str = "sum", *, compression: str | None = None) -> Any:
    """Combines a value over all replicas.

    Args:
      value: A nest of tensors of the same structure and shapes on every replica;
        ``tf.IndexedSlices`` leaves stay sparse under ``sum`` and ``mean``. Numbers of
        every type; integer sums wrap around like TensorFlow's; bool under ``min``
        (all) and ``max`` (any).
      op: ``sum``, ``mean``, ``min`` or ``max``.
      compression: ``bfloat16`` or ``float16`` lets float32 and float64 cross from one
        memory to another in 16 bits; see ``replicator.compression``. Gradients of the
        collective travel in full width.

    Returns:
      A nest of the same structure and shapes, equal on every replica.

    Raises:
      CollectiveContextError: Called outside a step function.
      OptimizerOptionError: Unknown ``compression``.
      ValueError: Unknown ``op``, the mean of integers, the minimum of complex numbers,
        or a type that is no number.
    """
    context = context_lib.require("all_reduce")
    context_lib.check_reduce_op(op)
    wire_dtype = compression_lib.check(compression)
    leaves = tf.nest.flatten(value)
    for leaf in leaves:
        reducible.check(leaf, op, "all_reduce")
    dense = [
        tf.convert_to_tensor(leaf)
        for leaf in leaves
        if not isinstance(leaf, tf.IndexedSlices)
    ]
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
      ValueError: A leaf is ``tf.IndexedSlices``.
    """
    context = context_lib.require("all_gather")
    for leaf in tf.nest.flatten(value):
        if isinstance(leaf, tf.IndexedSlices):
            raise ValueError(  # noqa: TRY004 (as all_reduce says it)
                "all_gather of tf.IndexedSlices would have to stack dense tensors; use "
                "tf.convert_to_tensor on the slices, or gather their values and indices"
            )

    def backward(
        _xs: Sequence[tf.Tensor], _ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        summed = context.all_reduce(dys, "sum")
        return [tf.gather(dy, context.replica_id_in_sync_group) for dy in summed]

    return _map_flat(context, value, context.all_gather, backward)


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
      TypeError: ``source_replica_id`` is not an int.
      ValueError: ``source_replica_id`` is out of range.
    """
    context = context_lib.require("broadcast")
    if not is_integer(source_replica_id):
        raise TypeError(
            f"source_replica_id {source_replica_id!r} must be a Python int: the source "
            "is linked when the step is traced"
        )
    count = context.num_replicas_in_sync
    if not 0 <= source_replica_id < count:
        raise ValueError(
            f"source_replica_id {source_replica_id!r} is out of range: there are "
            f"{count} replicas; use 0 to {count - 1}"
        )

    def backward(
        _xs: Sequence[tf.Tensor], _ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        is_source = tf.equal(context.replica_id_in_sync_group, source_replica_id)
        return [
            tf.where(is_source, dy, tf.zeros_like(dy))
            for dy in context.all_reduce(dys, "sum")
        ]

    leaves = tf.nest.flatten(value)
    # Slices travel as their two tensors; their dense shape is known everywhere.
    parts = [
        tf.convert_to_tensor(part)
        for leaf in leaves
        for part in (
            (leaf.values, leaf.indices)
            if isinstance(leaf, tf.IndexedSlices)
            else (leaf,)
        )
    ]
    sent = iter(
        _flat_with_gradient(
            context,
            parts,
            lambda xs: context.broadcast(xs, source_replica_id),
            backward,
        )
    )
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
    def backward(
        xs: Sequence[tf.Tensor], ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        if op in ("sum", "mean"):
            return context.all_reduce(dys, op)
        holds = [tf.cast(tf.equal(x, y), y.dtype) for x, y in zip(xs, ys, strict=True)]
        counts = context.all_reduce(holds, "sum")
        totals = context.all_reduce(dys, "sum")
        return [h * t / c for h, t, c in zip(holds, totals, counts, strict=True)]

    reduced = _flat_with_gradient(
        context,
        [tf.cast(t, reducible.stand_in(t.dtype)) for t in tensors],
        lambda xs: context.all_reduce(xs, op, wire_dtype),
        backward,
    )
    return [tf.cast(y, x.dtype) for x, y in zip(tensors, reduced, strict=True)]


def _all_reduce_sparse(
    context: ReplicaContext,
    slices: tf.IndexedSlices,
    op: str,
    wire_dtype: tf.DType | None,
) -> tf.IndexedSlices:
    """Joins the slices of all replicas: a sum of sparse tensors is their union."""
    if op not in ("sum", "mean"):
        raise ValueError(
            f"all_reduce of tf.IndexedSlices knows 'sum' and 'mean', not {op!r}; "
            "use tf.convert_to_tensor on the slices first"
        )
    dtype = slices.values.dtype
    narrow = tf.cast(slices.values, reducible.wire_of(dtype, wire_dtype))
    values, indices = context.all_gather([narrow, slices.indices])
    values = tf.cast(values, dtype)
    if op == "mean":
        values /= tf.cast(context.num_replicas_in_sync, values.dtype)
    return tf.IndexedSlices(
        tf.reshape(values, tf.concat([[-1], tf.shape(values)[2:]], axis=0)),
        tf.reshape(indices, [-1]),
        slices.dense_shape,
    )


def _map_flat(
    context: ReplicaContext, value: Any, forward: FlatFn, backward: FlatGradFn
) -> Any:
    tensors = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(value)]
    return tf.nest.pack_sequence_as(
        value, _flat_with_gradient(context, tensors, forward, backward)
    )


def _flat_with_gradient(
    context: ReplicaContext,
    tensors: Sequence[tf.Tensor],
    forward: FlatFn,
    backward: FlatGradFn,
) -> list[tf.Tensor]:
    """Runs ``forward`` so that its gradient is ``backward(xs, ys, dys)``.

    ``backward`` sees only tensors that gradients flow through; the others have none.
    """
    if not tensors:
        return []
    places = [i for i, t in enumerate(tensors) if reducible.is_differentiable(t.dtype)]
    if context.num_replicas_in_sync == 1 or not places:
        # The identity (or a stack of one) needs no special gradient, and integers
        # have none: keep the graph of the single device as it is.
        return forward(tensors)

    @tf.custom_gradient
    def with_gradient(*xs: tf.Tensor) -> Any:
        ys = forward(xs)

        def gradient(*dys: tf.Tensor) -> Any:
            grads: list[tf.Tensor | None] = [None] * len(xs)
            flowing = backward(
                [xs[i] for i in places],
                [ys[i] for i in places],
                [dys[i] for i in places],
            )
            for place, grad in zip(places, flowing, strict=True):
                grads[place] = grad
            return grads

        return tuple(ys), gradient

    return list(with_gradient(*tensors))
