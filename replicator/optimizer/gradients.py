"""Arithmetic on gradients, which are dense tensors or ``tf.IndexedSlices``.

Sparse gradients have the rows of a table that a batch has touched, with their indices.
Duplicate rows mean the sum of their values. Updates that are linear in the gradient can
add them one by one; all others (a square of the gradient, a norm, a sign) need the sum
first, or the result would differ from that of the dense gradient. Keras does not sum
them, so ``wrap_optimizer`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


def sum_duplicates(grad: Any) -> Any:
    """Sums the rows of a sparse gradient that have the same index."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    indices, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def clip_by_global_norm(grads: Sequence[Any], limit: float) -> list[Any]:
    """Scales all gradients so that their global norm is at most ``limit``.

    Pascanu et al. 2013. The norm is computed in float32. Slices of a sparse gradient
    that have the same index are summed first, as in the dense gradient.
    """
    unique = list(map(sum_duplicates, grads))
    return list(tf.clip_by_global_norm(unique, limit)[0])


def values_of(grad: Any) -> tf.Tensor:
    """The numbers of a dense or sparse gradient."""
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def times(grad: Any, factor: Any) -> Any:
    """Multiplies a dense or sparse gradient by a scalar, in its own type."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(
            times(grad.values, factor), grad.indices, grad.dense_shape
        )
    return grad * cast(factor, grad.dtype)


def cast(number: Any, dtype: tf.DType) -> tf.Tensor:
    """A tensor or Python number in another type; ``tf.cast`` makes a float 32 bits."""
    if tf.is_tensor(number) or hasattr(number, "dtype"):
        return tf.cast(number, dtype)
    return tf.constant(number, dtype)
