"""Communicate: collectives over flat lists of tensors, with gradients of every order.

The gradient of a collective uses ``communicate``, never the raw collectives of a
context, so it can be differentiated again: second derivatives, gradient penalties,
forward mode and Jacobians communicate wherever the first gradient does. All gradients
are linear in the incoming gradient, which forward mode relies on: TensorFlow transposes
the gradient to get it.

On replica r, the gradient of a target t is d(sum over replicas s of t_s) / d(x_r)
(Buchlovsky et al. 2019 and ``tf.distribute``). Where the losses of replicas count by
weights w, as in the last, smaller batch of ``fit``, the target is the sum of w_s t_s:
what the gradients of the replica are multiplied by in the end, w_r, is taken out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import gradients as _tf_gradients
from replicator.collectives import reducible
from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.collectives.kind import CollectiveKind
    from replicator.step.context import ReplicaContext


def communicate(
    context: ReplicaContext, kind: CollectiveKind, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Carries out a collective so that its gradient is that of its kind."""
    if not tensors:
        return []
    places = [i for i, t in enumerate(tensors) if reducible.is_differentiable(t.dtype)]
    if context.num_replicas_in_sync == 1 or not places:
        # What one replica does needs no special gradient, and integers have none:
        # leave the graph of the single device unchanged.
        return context.communicate(kind, tensors)

    results: list[tf.Tensor] = []

    def gradient(*dys: Any) -> list[tf.Tensor | None]:
        grads: list[tf.Tensor | None] = [None] * len(tensors)
        weight = context_lib.loss_weight()
        flowing = kind.gradient(
            context,
            [tensors[i] for i in places],
            [results[i] for i in places],
            # The gradient of a tf.gather from a result is tf.IndexedSlices.
            [_times(tf.convert_to_tensor(dys[i]), weight) for i in places],
        )
        for place, grad in zip(places, flowing, strict=True):
            grads[place] = _without(grad, weight)
        return grads

    @tf.custom_gradient
    def with_gradient(*xs: tf.Tensor) -> Any:
        results[:] = context.communicate(kind, xs)
        return tuple(results), gradient

    return _tf_gradients.call_with_gradient(with_gradient, tensors, gradient)


def _times(grad: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Weighs a gradient; that of a mean over no examples, no number, is not counted."""
    if weight is None:
        return grad
    return tf.math.multiply_no_nan(grad, tf.cast(weight, grad.dtype))


def _without(grad: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    if weight is None:
        return grad
    return tf.math.divide_no_nan(grad, tf.cast(weight, grad.dtype))
