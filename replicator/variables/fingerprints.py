"""Fingerprints: the state by which a change of a variable is detected.

Functions of tensors with few ops each: a program has them for every variable with
copies, and they used to take a quarter of the time of its first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.placement import devices as device_lib

if TYPE_CHECKING:
    from replicator.variables.kinds import Kind

# Odd multipliers of splitmix64 (Steele et al. 2014), less their sign bits.
_MIX_1 = 0x3F58476D1CE4E5B9
_MIX_2 = 0x14D049BB133111EB
# Integer types by width in bytes.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


def is_compiled(variable: Any) -> bool:
    """Whether a variable is checked by the compiled function of its device.

    TensorFlow keeps int32 of GPUs in host memory, where XLA does not take it.
    """
    dtype = variable.dtype
    has_type = dtype.is_floating or dtype == tf.int64
    return has_type and not device_lib.is_cpu(variable.device)


def state(variable: Any, kind: Kind) -> tf.Tensor:
    """The value or fingerprint by which a change of a variable is detected."""
    # On the variable's device: of a remote one, only eight bytes are sent.
    with tf.device(variable.device):
        return state_of(variable.value(), kind, variable.device, variable.shape)


def state_of(
    value: tf.Tensor, kind: Kind, device: str, shape: tf.TensorShape
) -> tf.Tensor:
    """The ``state`` of a variable with this value."""
    if not shape.is_fully_defined():
        parts = [value, tf.shape(value)]
        return tf.concat([_checksum(part, device) for part in parts], axis=0)
    return value if kind.is_per_replica else _checksum(value, device)


def _checksum(value: tf.Tensor, device: str) -> tf.Tensor:
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
