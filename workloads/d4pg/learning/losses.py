"""The losses of D4PG (Barth-Maron et al. 2018), as pure functions per example."""

from __future__ import annotations

import tensorflow as tf

_ROW, _MATRIX = 1, 2  # ranks


def critic_loss(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy from target to predicted distributions of returns."""
    _check("critic_loss", "logits", logits)
    _check("critic_loss", "target", target)
    _check_alike("critic_loss", logits, target)
    return tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(target), logits)


def divergence(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns the Kullback-Leibler divergence from target to prediction.

    Used for priorities of replay: the cross-entropy minus the entropy of the target,
    so that it is 0 for a perfect prediction.
    """
    entropy = -tf.reduce_sum(tf.math.xlogy(target, target), axis=1)
    return tf.maximum(critic_loss(logits, target) - entropy, 0.0)


def policy_loss(
    action: tf.Tensor, value_gradient: tf.Tensor, *, clip_norm: float
) -> tf.Tensor:
    """Returns a loss whose gradient for the actions is minus that of their value.

    The deterministic policy gradient (Silver et al. 2014) is dQ/da da/dtheta. As in
    Acme, 0.5 |a - stop(a + dQ/da)|^2 has it as its gradient, where the norm of dQ/da
    is first clipped, per example.
    """
    _check("policy_loss", "action", action)
    _check("policy_loss", "value_gradient", value_gradient)
    _check_alike("policy_loss", action, value_gradient)
    if clip_norm < 0.0:
        raise ValueError(
            f"policy_loss got clip_norm={clip_norm}: use 0 for none, or a norm such "
            "as 1.0"
        )
    if clip_norm:
        value_gradient = tf.clip_by_norm(value_gradient, clip_norm, axes=1)
    better = tf.stop_gradient(action + value_gradient)
    return 0.5 * tf.reduce_sum(tf.square(better - action), axis=1)


def importance_weights(probability: tf.Tensor, *, exponent: float) -> tf.Tensor:
    """Returns probability ** -exponent: the correction of prioritized sampling.

    Schaul et al. 2016, section 3.4, before the division by the largest, which is taken
    over the global batch.
    """
    if probability.shape.rank != _ROW or probability.dtype != tf.float32:
        raise ValueError(
            "importance_weights needs probability of shape [examples] and type "
            f"float32, but got {probability.shape} and {probability.dtype.name!r}"
        )
    if not 0.0 <= exponent <= 1.0:
        raise ValueError(
            f"importance_weights got exponent={exponent}: use a number from 0 to 1"
        )
    return tf.pow(probability, -exponent)


def _check(loss: str, name: str, value: tf.Tensor) -> None:
    if value.shape.rank != _MATRIX or value.dtype != tf.float32:
        raise ValueError(
            f"{loss} needs {name} of rank 2, a row per example, and type float32, but "
            f"got {value.shape} and {value.dtype.name!r}; reshape or cast it first"
        )


def _check_alike(loss: str, first: tf.Tensor, second: tf.Tensor) -> None:
    if not first.shape.is_compatible_with(second.shape):
        raise ValueError(
            f"{loss} needs two tensors of one shape, but got {first.shape} and "
            f"{second.shape}"
        )
