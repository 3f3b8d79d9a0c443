"""The last step of an epoch, for which there are fewer batches than replicas.

What a pipeline has left is divided among the replicas that it feeds, as equally as
possible, and replicas of pipelines that are at their end get batches without examples:
an epoch feeds every example once. This needs batches whose size is not fixed
(``batch(size)`` without ``drop_remainder``); of others, such a step does not run.

A pipeline that may have such a step is *filled*: its elements say whether they are
batches of its own, and batches without examples follow the last one without end.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.inputs.context import num_rows, part_of_batch, rows, without_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_IS_FED = "replicator_is_fed"
_BATCH = "replicator_batch"


def can_fill(spec: Any) -> bool:
    """Whether batches of this nest of ``tf.TypeSpec`` can have any number of examples.

    Every component has a row per example, and no fixed number of them.
    """
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
    joined = batches[0]
    for batch, is_own in zip(batches[1:], is_fed[1:], strict=True):
        # What has no examples has unknown dimensions of any size: it is left out.
        both = functools.partial(tf.nest.map_structure, _concat, joined, batch)
        joined = tf.cond(is_own, both, functools.partial(_same, joined))
    return joined


def _same(value: Any) -> Any:
    return value


def _concat(first: Any, second: Any) -> Any:
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, [first, second], expand_nonconcat_dims=True)
    return tf.concat([first, second], axis=0)
