"""Batches: values of replicas, their examples, and the last step of an epoch.

For the last step there are fewer batches than replicas. What a pipeline has left is
divided among the replicas that it feeds, as equally as possible, and replicas of
pipelines that are at their end get batches without examples: an epoch feeds every
example once. This needs batches whose size is not fixed (``batch(size)`` without
``drop_remainder``); of others, such a step does not run.

A pipeline that may have such a step is *filled*: its elements say whether they are
batches of its own, and batches without examples follow the last one without end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from replicator.core.step import PerReplica, tensor_of

_COMPOSITE = (tf.RaggedTensor, tf.SparseTensor)


def as_value(value: Any, caller: str = "inputs") -> Any:
    """Converts a value to an input of a step: a dense, ragged or sparse tensor."""
    if isinstance(value, (tf.Tensor, *_COMPOSITE)):
        return value
    return tensor_of(
        value,
        f"{caller} must be tensors (dense, ragged or sparse), NumPy arrays or "
        "numbers, one for each replica",
    )


def is_composite(value: Any) -> bool:
    """Whether a value is a ragged or sparse tensor."""
    return isinstance(value, _COMPOSITE)


def is_per_replica_nest(value: Any) -> bool:
    """Tells whether every leaf is a ``PerReplica``."""
    leaves = tf.nest.flatten(value)
    return bool(leaves) and all(isinstance(leaf, PerReplica) for leaf in leaves)


def values_of(inputs: Any, replicas: Iterable[int]) -> list[Any]:
    """Takes the values of some replicas out of a nest of ``PerReplica``."""
    return [
        tf.nest.map_structure(lambda leaf, r=r: as_value(leaf[r]), inputs)
        for r in replicas
    ]


def common_spec(leaf: PerReplica[Any]) -> tf.TypeSpec:
    """The type of the values of all replicas."""
    # Ragged and sparse tensors may have different numbers of rows, as they may in an
    # input pipeline.
    if leaf.spec is not None:
        return leaf.spec
    values = list(map(as_value, leaf))
    specs = list(map(tf.type_spec_from_value, values))
    common = specs[0]
    if is_composite(values[0]):
        common = specs[0].most_specific_common_supertype(specs[1:])
    elif any(not spec.is_compatible_with(specs[0]) for spec in specs[1:]):
        common = None
    if common is None:
        raise ValueError(
            f"inputs differ between replicas in shape or type: {specs}; give every "
            "replica the same shapes"
        )
    return common


def num_rows(leaf: Any) -> tf.Tensor:
    """Examples of a batch: the size of its first dimension, a scalar int64 tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]


def part_of_batch(batch: Any, index: Any, num_parts: int) -> Any:
    """One of the parts of a batch, whose sizes differ by at most one example."""
    leaf = tf.nest.flatten(batch)[0]
    static = leaf.shape[0]
    is_even = static is not None and static % num_parts == 0
    size = static if is_even else num_rows(leaf)
    start, stop = bounds(size, index, num_parts)
    return tf.nest.map_structure(lambda leaf: rows(leaf, start, stop), batch)


def bounds(size: Any, index: Any, num_parts: int) -> tuple[Any, Any]:
    """Where a part of so many examples begins and ends."""
    return size * index // num_parts, size * (index + 1) // num_parts


def rows(leaf: Any, start: Any, stop: Any) -> Any:
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
    splits = [tf.zeros([1], spec.row_splits_dtype)] * spec.ragged_rank
    return tf.RaggedTensor.from_nested_row_splits(value, splits)


def element_of(arguments: tuple[Any, ...], dataset: tf.data.Dataset) -> Any:
    """The element of a dataset, from the arguments of a function that ``map`` calls."""
    # A tuple is unpacked, one of a single component too.
    return arguments if type(dataset.element_spec) is tuple else arguments[0]


_IS_FED = "replicator_is_fed"
_BATCH = "replicator_batch"


def can_fill(spec: Any) -> bool:
    """Whether batches of these ``tf.TypeSpec`` can have any number of examples."""
    # Every component has a row per example, and no fixed number of them.
    return all(map(_has_any_size, tf.nest.flatten(spec)))


def _has_any_size(spec: Any) -> bool:
    is_ragged = isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank > 0
    if not (is_ragged or isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec))):
        return False
    return bool(spec.shape.rank) and spec.shape[0] is None


def fill(pipeline: tf.data.Dataset, num_replicas: int) -> tf.data.Dataset:
    """Fills a pipeline that feeds so many replicas in turn; see the top of the file."""

    def flagged(batches: tf.data.Dataset, *, is_fed: bool) -> tf.data.Dataset:
        # One flag per replica, so that its shape tells readers how many there are.
        flag = tf.data.Dataset.from_tensors(tf.fill([num_replicas], is_fed)).repeat()
        return tf.data.Dataset.zip({_IS_FED: flag, _BATCH: batches})

    empty = tf.nest.map_structure(without_rows, pipeline.element_spec)
    rest = tf.data.Dataset.from_tensors(empty).repeat()
    return flagged(pipeline, is_fed=True).concatenate(flagged(rest, is_fed=False))


def trimmed(pipeline: tf.data.Dataset, drops: Sequence[int]) -> tf.data.Dataset:
    """A pipeline whose first batches lack so many of their first examples."""
    counts = tf.constant([*drops, 0], tf.int64)

    def trim(index: tf.Tensor, batch: Any) -> Any:
        start = counts[tf.minimum(index, len(drops))]
        return tf.nest.map_structure(
            lambda leaf: rows(leaf, start, num_rows(leaf)), batch
        )

    return pipeline.enumerate().map(trim)


def is_filled(iterator: Any) -> bool:
    """Whether an iterator reads a filled pipeline."""
    spec = iterator.element_spec
    return isinstance(spec, dict) and _IS_FED in spec


def divide(elements: Sequence[Any]) -> tuple[list[Any], tf.Tensor]:
    """Takes the batches out of one element of a filled pipeline per replica."""
    batches = [element[_BATCH] for element in elements]
    flags = [element[_IS_FED] for element in elements]
    (share,) = flags[0].shape
    is_fed = [flag[0] for flag in flags]
    is_any = tf.reduce_any(is_fed)
    if share == 1:
        return batches, is_any

    def divided() -> list[Any]:
        parts = []
        for start in range(0, len(batches), share):
            own = slice(start, start + share)
            joined = _join(batches[own], is_fed[own])
            parts += [part_of_batch(joined, index, share) for index in range(share)]
        return parts

    divided_batches = tf.cond(tf.reduce_all(is_fed), lambda: batches, divided)
    return list(divided_batches), is_any


def end_unless(is_fed: tf.Tensor) -> tf.Tensor:
    """Emits an op that raises ``tf.errors.OutOfRangeError`` where nothing was read."""
    # Reading what has no element is TensorFlow's own error for the end of data.
    return tf.cond(
        is_fed,
        lambda: tf.constant(0, tf.int64),
        lambda: next(iter(tf.data.Dataset.range(0))),
    )


def _join(batches: Sequence[Any], is_fed: Sequence[tf.Tensor]) -> Any:
    """The examples of those batches that a pipeline had, which are the first ones."""

    def join(joined: Any, other: tuple[Any, tf.Tensor]) -> Any:
        batch, is_own = other
        # What has no examples has unknown dimensions of any size: it is left out.
        both = functools.partial(tf.nest.map_structure, _concat, joined, batch)
        return tf.cond(is_own, both, lambda: joined)

    return functools.reduce(join, zip(batches[1:], is_fed[1:], strict=True), batches[0])


def _concat(first: Any, second: Any) -> Any:
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, [first, second], expand_nonconcat_dims=True)
    return tf.concat([first, second], axis=0)
