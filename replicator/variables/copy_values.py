"""Copy values: what a replica's copy is after the user has set the variable."""

from __future__ import annotations

import tensorflow as tf

from replicator.variables.kinds import Kind

# Odd constants of Knuth's multiplicative hash: distinct replicas get distinct keys.
_FOLD_31 = 0x1E3779B1
_FOLD_63 = 0x1E3779B97F4A7C15


def replica_value(
    value: tf.Tensor,
    kind: Kind,
    replica_id: int,
    num_replicas: int,
    *,
    is_sum: bool = False,
) -> tf.Tensor:
    """The value of a replica's copy after the user has set the variable."""
    if kind is Kind.LOCAL and is_sum:
        # Copies must sum to the value; replica 0 takes the remainder of the division.
        share = tf.zeros_like(value) if num_replicas == 1 else value // num_replicas
        return value - share * (num_replicas - 1) if replica_id == 0 else share
    if kind is not Kind.RANDOM or replica_id == 0:
        return value
    # Keras: [seed, counter]; tf.random.Generator: [counter, counter, key].
    is_keras = value.shape == (2,)
    limit = 31 if value.dtype.size == 4 else 63  # noqa: PLR2004 (bytes of int32)
    key = (_FOLD_31 if limit == 31 else _FOLD_63) * replica_id % (1 << limit)  # noqa: PLR2004
    position = 0 if is_keras else value.shape[0] - 1
    mask = tf.one_hot(position, value.shape[0], dtype=value.dtype) * tf.constant(
        key, value.dtype
    )
    return tf.bitwise.bitwise_xor(value, mask)
