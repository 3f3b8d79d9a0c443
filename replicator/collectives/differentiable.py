"""Collectives over flat lists of tensors, with gradients of every order.

The gradient of a collective is itself built of the collectives below, never of a
context's raw ones, so it can be differentiated again: second derivatives, a gradient
penalty, forward mode and Jacobians all communicate where the first gradient does. All
of them are linear in what flows back, which is what forward mode relies on: TensorFlow
transposes the gradient to get it.

On replica r, the gradient of a target t is d(sum over replicas s of t_s) / d(x_r)
(Buchlovsky et al. 2019 and ``tf.distribute``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import gradients as _tf_gradients
from replicator.collectives import reducible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.step.context import ReplicaContext

    FlatFn = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
    # (inputs, outputs, gradients of outputs) -> gradients of inputs
    Backward = Callable[
        [Sequence[tf.Tensor], Sequence[tf.Tensor], Sequence[tf.Tensor]],
        Sequence[tf.Tensor],
    ]


def all_reduce(
    context: ReplicaContext,
    tensors: Sequence[tf.Tensor],
    op: str,
    wire_dtype: tf.DType | None = None,
) -> list[tf.Tensor]:
    """Reduces each tensor over replicas; gradients travel in full width.

    The gradient of a sum or mean is the sum or mean of the gradients. That of a minimum
    or maximum is their sum, in equal shares for the replicas that hold the extreme.
    """

    def backward(
        xs: Sequence[tf.Tensor], ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        if op in ("sum", "mean"):
            return all_reduce(context, dys, op)
        holds = [tf.cast(tf.equal(x, y), y.dtype) for x, y in zip(xs, ys, strict=True)]
        counts = all_reduce(context, holds, "sum")
        totals = all_reduce(context, dys, "sum")
        return [h * t / c for h, t, c in zip(holds, totals, counts, strict=True)]

    def forward(xs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if wire_dtype is None:
            return context.all_reduce(xs, op)
        return context.compressed_all_reduce(xs, op, wire_dtype)

    return _with_gradient(context, tensors, forward, backward)


def all_gather(
    context: ReplicaContext, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Stacks each tensor over replicas; the gradient is the own slice of the sum."""

    def backward(
        _xs: Sequence[tf.Tensor], _ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        mine = context.replica_id_in_sync_group
        return [dy[mine] for dy in all_reduce(context, dys, "sum")]

    return _with_gradient(context, tensors, context.all_gather, backward)


def all_concat(
    context: ReplicaContext, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Joins the rows of all replicas; the gradient is the own rows of the sum.

    Replicas may have different numbers of rows; tensors of one call have as many.
    """

    def backward(
        xs: Sequence[tf.Tensor], _ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        (counts,) = context.all_gather([tf.shape(xs[0])[0]])
        mine = context.replica_id_in_sync_group
        begin = tf.reduce_sum(counts[:mine])
        end = begin + counts[mine]
        return [dy[begin:end] for dy in all_reduce(context, dys, "sum")]

    return _with_gradient(context, tensors, context.all_concat, backward)


def broadcast(
    context: ReplicaContext, tensors: Sequence[tf.Tensor], source_replica_id: int
) -> list[tf.Tensor]:
    """Sends one replica's tensors; the gradient is the sum, delivered to the source."""

    def backward(
        _xs: Sequence[tf.Tensor], _ys: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        is_source = tf.equal(context.replica_id_in_sync_group, source_replica_id)
        return [
            tf.where(is_source, dy, tf.zeros_like(dy))
            for dy in all_reduce(context, dys, "sum")
        ]

    return _with_gradient(
        context,
        tensors,
        lambda xs: context.broadcast(xs, source_replica_id),
        backward,
    )


def _with_gradient(
    context: ReplicaContext,
    tensors: Sequence[tf.Tensor],
    forward: FlatFn,
    backward: Backward,
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

    results: list[tf.Tensor] = []

    def gradient(*dys: Any) -> list[tf.Tensor | None]:
        grads: list[tf.Tensor | None] = [None] * len(tensors)
        flowing = backward(
            [tensors[i] for i in places],
            [results[i] for i in places],
            # What was gathered from a result comes back as tf.IndexedSlices.
            [tf.convert_to_tensor(dys[i]) for i in places],
        )
        for place, grad in zip(places, flowing, strict=True):
            grads[place] = grad
        return grads

    @tf.custom_gradient
    def with_gradient(*xs: tf.Tensor) -> Any:
        results[:] = forward(xs)
        return tuple(results), gradient

    return _tf_gradients.call_with_gradient(with_gradient, tensors, gradient)
