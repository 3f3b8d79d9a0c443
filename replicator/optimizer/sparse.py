"""Sparse gradients: the rows of a table that a batch has touched, with their indices.

A row that comes several times stands for the sum of its values. Updates that are linear
in the gradient may add them up one by one; all others (a square of the gradient, a
norm, a sign) need the sum first, or they would compute something else than they do with
the dense gradient. Keras takes rows as they come, so ``wrap_optimizer`` adds them up.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def sum_duplicates(grad: Any) -> Any:
    """Adds up the rows of a sparse gradient that have the same index.

    Args:
      grad: ``tf.IndexedSlices``, or a dense tensor, which is returned as it is.

    Returns:
      The same gradient, with each row at most once, in the order of their first place.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    indices, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, grad.dense_shape)
