"""Rows: the first dimension of a tensor, in vectorized loops and gradients."""

from __future__ import annotations

import tensorflow as tf


def swap(tensor: tf.Tensor) -> tf.Tensor:
    """Swaps the first two dimensions."""
    rest = tf.range(2, tf.rank(tensor))
    return tf.transpose(tensor, tf.concat([[1, 0], rest], axis=0))


def join(stacked: tf.Tensor) -> tf.Tensor:
    """Joins the rows of what is stacked: ``[R, k, ...]`` becomes ``[R k, ...]``."""
    dims = tf.shape(stacked)
    return tf.reshape(stacked, tf.concat([[dims[0] * dims[1]], dims[2:]], axis=0))
