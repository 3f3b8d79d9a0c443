"""Sparse gradients: the rows of a table that a batch has touched, with their indices.

Duplicate rows mean the sum of their values. Updates that are linear in the gradient can
add them one by one; all others (a square of the gradient, a norm, a sign) need the sum
first, or the result would differ from that of the dense gradient. Keras does not sum
them, so ``wrap_optimizer`` does.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def sum_duplicates(grad: Any) -> Any:
    """Sums the rows of a sparse gradient that have the same index.

    Args:
      grad: ``tf.IndexedSlices``, or a dense tensor, which is returned unchanged.

    Returns:
      The same gradient, with each row at most once, in the order of first occurrence.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    indices, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, grad.dense_shape)
