"""The examples of a batch: rows of a nest of dense, ragged or sparse tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def num_rows(leaf: Any) -> tf.Tensor:
    """Examples of a batch: the size of its first dimension, a scalar int64 tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]


def part(batch: Any, index: Any, num_parts: int) -> Any:
    """One of the parts of a batch, whose sizes differ by at most one example."""
    leaf = tf.nest.flatten(batch)[0]
    static = leaf.shape[0]
    is_even = static is not None and static % num_parts == 0
    size = static if is_even else num_rows(leaf)
    start, stop = size * index // num_parts, size * (index + 1) // num_parts
    return tf.nest.map_structure(lambda leaf: _rows(leaf, start, stop), batch)


def _rows(leaf: Any, start: Any, stop: Any) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
    inner = leaf.dense_shape[1:]
    first = tf.concat([[start], tf.zeros_like(inner)], axis=0)
    return tf.sparse.slice(leaf, first, tf.concat([[stop - start], inner], axis=0))


def without_rows(spec: Any) -> Any:
    """A value of a ``tf.TypeSpec`` that has no examples."""
    inner = [dimension or 0 for dimension in spec.shape[1:]]
    if isinstance(spec, tf.SparseTensorSpec):
        indices = tf.zeros([0, spec.shape.rank], tf.int64)
        return tf.SparseTensor(indices, tf.zeros([0], spec.dtype), [0, *inner])
    if not isinstance(spec, tf.RaggedTensorSpec):
        return tf.zeros([0, *inner], spec.dtype)
    value = tf.zeros([0, *inner[spec.ragged_rank :]], spec.dtype)
    for _ in range(spec.ragged_rank):
        splits = tf.zeros([1], spec.row_splits_dtype)
        value = tf.RaggedTensor.from_row_splits(value, splits)
    return value


def element_of(arguments: tuple[Any, ...], dataset: tf.data.Dataset) -> Any:
    """The element of a dataset, from the arguments with which ``map`` calls a function.

    A tuple is unpacked, one of a single component too.
    """
    return arguments if type(dataset.element_spec) is tuple else arguments[0]
