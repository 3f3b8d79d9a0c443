"""A mirrored strategy whose replicas do not communicate (test_without_communication).

A strategy and Keras reduce by three private methods of its ``extended``. Here they
return what a reduction would if all replicas held the same value: the own value for a
mean, R times the own value for a sum.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import values as values_lib


def remove_communication(strategy: Any) -> None:
    """Makes all reductions of a mirrored strategy local, for good."""
    extended, count = strategy.extended, strategy.num_replicas_in_sync

    def reduce_to(op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        return tf.nest.map_structure(
            lambda leaf: _on_each_replica(leaf, op, count), value
        )

    def batch_reduce_to(op: Any, pairs: Any, options: Any) -> list[Any]:
        return [reduce_to(op, value, None, options) for value, _ in pairs]

    def replica_ctx_all_reduce(op: Any, value: Any, options: Any = None) -> Any:
        del options
        return tf.nest.map_structure(lambda leaf: local_value(leaf, op, count), value)

    extended._reduce_to = reduce_to  # noqa: SLF001 (see the top of this file)
    extended._batch_reduce_to = batch_reduce_to  # noqa: SLF001
    extended._replica_ctx_all_reduce = replica_ctx_all_reduce  # noqa: SLF001


def _on_each_replica(value: Any, op: Any, count: int) -> Any:
    if not isinstance(value, values_lib.DistributedValues):
        return local_value(value, op, count)
    if isinstance(value, values_lib.Mirrored) and op == tf.distribute.ReduceOp.MEAN:
        return value
    return values_lib.Mirrored([local_value(v, op, count) for v in value.values])


def local_value(value: Any, op: Any, count: int) -> Any:
    """What the reduction of a value is if all replicas have the same one.

    Rows of ``tf.IndexedSlices`` are joined, so there are R times as many.
    """
    is_sum = op == tf.distribute.ReduceOp.SUM
    if not isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
        return value * tf.cast(count, value.dtype) if is_sum else value
    own = value.values if is_sum else value.values / tf.cast(count, value.values.dtype)
    return tf.IndexedSlices(
        values=tf.concat([own] * count, axis=0),
        indices=tf.concat([value.indices] * count, axis=0),
        dense_shape=value.dense_shape,
    )
