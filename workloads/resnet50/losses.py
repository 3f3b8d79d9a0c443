"""Loss terms as pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def softmax_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, *, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns the cross-entropy of each example, in nats."""
    if labels.shape.rank != 1 or logits.shape.rank != 2:  # noqa: PLR2004 - ranks
        raise ValueError(
            "softmax_cross_entropy needs labels of shape [examples] and logits of "
            f"shape [examples, classes], but got {labels.shape} and {logits.shape}"
        )
    if not labels.dtype.is_integer or logits.dtype != tf.float32:
        raise ValueError(
            "softmax_cross_entropy needs integer labels and float32 logits, but got "
            f"{labels.dtype.name!r} and {logits.dtype.name!r}; cast them first"
        )
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        even = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        loss = (1.0 - label_smoothing) * loss + label_smoothing * even
    return loss


def add_weight_decay(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    weight_decay: float | tf.Tensor,
) -> list[Any]:
    """Returns ``g + weight_decay * w`` for kernels and ``g`` for all else.

    This is the gradient of ``loss + weight_decay / 2 * sum(w ** 2)`` without the cost
    of computing that sum. It is the same on every replica, so averaging over replicas
    does not change it. Kernels are the variables of rank 2 and above; biases and
    batch-norm parameters have rank 1 and are not decayed, as published.
    """
    if len(gradients) != len(variables):
        raise ValueError(
            f"add_weight_decay got {len(gradients)} gradients for {len(variables)} "
            "variables; pass one gradient per variable, in the same order"
        )
    if isinstance(weight_decay, float) and not weight_decay:
        return list(gradients)
    return [
        gradient + weight_decay * tf.convert_to_tensor(variable)
        if len(variable.shape) > 1
        else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
