"""The types that a reduction accepts, and the types in which it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Sequence

# TensorFlow's reductions have no kernels for these: bool and 4-bit integers are reduced
# as wider integers, 8-bit floats in float32 with one rounding at the end.
_STAND_INS = {
    tf.bool: tf.uint8,
    tf.dtypes.experimental.int4: tf.int8,
    tf.dtypes.experimental.uint4: tf.uint8,
    tf.dtypes.experimental.float8_e4m3fn: tf.float32,
}
_UNKNOWN_TO_GRAPHS = tf.dtypes.experimental.float8_e5m2


def check(value: tf.Tensor | tf.IndexedSlices, op: str, caller: str) -> None:
    """Rejects a reduction that is not defined for the type of a value."""
    dtype = tf.as_dtype(value.dtype)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
    if dtype == tf.bool and op in ("sum", "mean"):
        number = "tf.int32 first to count" if op == "sum" else "tf.float32 first"
        raise ValueError(
            f"{caller} {op!r} of bool is not defined; use 'max' for any, 'min' for "
            f"all, or tf.cast the value to {number}"
        )
    if not is_number and dtype != tf.bool:
        raise ValueError(
            f"{caller} {op!r} of {dtype.name} is not defined; reductions take numbers "
            "(and bool with 'min' and 'max'); all_gather and broadcast take any type"
        )
    if op == "mean":
        context_lib.check_mean(dtype, caller)
    if dtype == _UNKNOWN_TO_GRAPHS:
        raise ValueError(
            f"{caller} {op!r} of {dtype.name} does not work: TensorFlow's graph "
            "optimizer does not support this type; tf.cast the value to tf.float16 "
            "first"
        )
    if dtype.is_complex and op in ("min", "max"):
        raise ValueError(
            f"{caller} {op!r} of {dtype.name} is not defined: complex numbers have no "
            "order; reduce tf.abs of the value, or its real and imaginary parts"
        )


def combine(values: Sequence[tf.Tensor], op: str) -> tf.Tensor:
    """Reduces dense tensors of one shape and type eagerly, as a step does."""
    dtype = values[0].dtype
    stacked = tf.stack([tf.cast(value, stand_in(dtype, op)) for value in values])
    return tf.cast(getattr(tf, f"reduce_{op}")(stacked, axis=0), dtype)


def stand_in(dtype: tf.DType, op: str) -> tf.DType:
    """The type in which values of ``dtype`` are reduced; usually ``dtype`` itself.

    The sum of float16 on the way to a mean overflows where the mean does not, and
    divided first, small values lose bits: float32 does neither.
    """
    if op == "mean" and dtype == tf.float16:
        return tf.float32
    return _STAND_INS.get(dtype, dtype)


def is_differentiable(dtype: tf.DType) -> bool:
    """Whether gradients flow through tensors of a type."""
    return bool(dtype.is_floating or dtype.is_complex)
