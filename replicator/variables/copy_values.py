"""Conversion between users' variables and replicas' copies, and checksums.

Functions of tensors with few ops each: a program has them for every variable with
copies, and they used to take a quarter of the time of its first step.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator.placement import devices as device_lib
from replicator.variables.kinds import Kind

# Odd constants of Knuth's multiplicative hash: distinct replicas get distinct keys.
_FOLD_31 = 0x1E3779B1
_FOLD_63 = 0x1E3779B97F4A7C15
# Odd multipliers of splitmix64 (Steele et al. 2014), less their sign bits.
_MIX_1 = 0x3F58476D1CE4E5B9
_MIX_2 = 0x14D049BB133111EB
# Integer types by width in bytes.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def replica_value(
    value: tf.Tensor,
    kind: Kind,
    replica_id: int,
    num_replicas: int,
    *,
    is_sum: bool = False,
) -> tf.Tensor:
    """The value of a replica's copy after the user has set the variable.

    Args:
      value: Value of the user's variable; of static shape if it is random state.
      kind: Kind of the variable.
      replica_id: Id of the replica.
      num_replicas: Replicas of the whole job.
      is_sum: Whether the value is the sum of the local copies (``kinds.is_summed``).
    """
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


def state(variable: Any, kind: Kind) -> tf.Tensor:
    """The value or fingerprint by which a change of a variable is detected."""
    # On the variable's device: of a remote one, only eight bytes are sent.
    with tf.device(variable.device):
        return state_of(variable.value(), kind, variable.device)


def state_of(value: tf.Tensor, kind: Kind, device: str) -> tf.Tensor:
    """The ``state`` of a variable with this value.

    Args:
      value: Value of the variable.
      kind: Kind of the variable.
      device: Full name of its device.

    Returns:
      The value; a fingerprint [1] of mirrored and partial ones.
    """
    if kind in (Kind.LOCAL, Kind.RANDOM):
        return value
    if device_lib.is_cpu(device):
        return tf.bitcast(tf.fingerprint(tf.reshape(value, [1, -1])), tf.int64)
    return fingerprint(value)


def bits(value: tf.Tensor) -> tf.Tensor:
    """The value as a vector of integers: equal bits compare equal, even NaN."""
    flat = tf.reshape(value, [-1])
    if value.dtype == tf.bool:
        return tf.cast(flat, tf.int64)
    if value.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(flat, 1 << 62)
    width = min(value.dtype.size, 8)  # of complex128: two halves
    return tf.cast(tf.reshape(tf.bitcast(flat, _BITS[width]), [-1]), tf.int64)


def fingerprint(value: tf.Tensor) -> tf.Tensor:
    """A checksum of the bits, of ops with GPU kernels; CPUs hash 20 times faster."""
    # Scrambled first (as in splitmix64): a sum of plain bits by position would take
    # [3, 0] for [0, 1], and one round still confuses some small integers. Weights by
    # position, so that exchanged elements change the sum.
    mixed = bits(value) * _MIX_1
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 29))
    mixed *= _MIX_2
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 32))
    places = tf.range(tf.size(mixed, out_type=tf.int64), dtype=tf.int64) * 2 + 1
    return tf.reduce_sum(mixed * places, keepdims=True)
