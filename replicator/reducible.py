"""Which types a reduction takes, and as what they are reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator import context as context_lib

# TensorFlow's reductions have no kernel for these: bool is reduced as integers, 8-bit
# floats with float32 accumulation and one rounding at the end. (Its graph optimizer
# does not know float8_e5m2 at all.)
_STAND_INS = {
    tf.bool: tf.uint8,
    tf.dtypes.experimental.float8_e4m3fn: tf.float32,
}


def check(value: Any, op: str, caller: str) -> None:
    """Refuses a reduction that has no meaning for the type of a value.

    Args:
      value: What ``tf.convert_to_tensor`` takes, or ``tf.IndexedSlices``.
      op: One of ``context.REDUCE_OPS``.
      caller: Name of the function that the user called.

    Raises:
      ValueError: The message says what the type allows.
    """
    if op == "mean":
        context_lib.check_mean(value, caller)
    dtype = dtype_of(value)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
    if dtype == tf.bool and op == "sum":
        raise ValueError(
            f"{caller} 'sum' of bool has no meaning; use 'max' for any, 'min' for all, "
            "or tf.cast the value to tf.int32 first to count"
        )
    if not is_number and dtype != tf.bool:
        raise ValueError(
            f"{caller} {op!r} of {dtype.name} has no meaning; reductions take numbers "
            "(and bool under 'min' and 'max'); all_gather and broadcast take any type"
        )
    if dtype.is_complex and op in ("min", "max"):
        raise ValueError(
            f"{caller} {op!r} of {dtype.name} has no meaning: complex numbers have no "
            "order; reduce tf.abs of the value, or its real and imaginary parts"
        )


def stand_in(dtype: tf.DType) -> tf.DType:
    """The type as which values of ``dtype`` are reduced; mostly itself."""
    return _STAND_INS.get(dtype, dtype)


def wire_of(dtype: tf.DType, wire_dtype: tf.DType | None) -> tf.DType:
    """The type in which tensors of ``dtype`` travel when ``wire_dtype`` is asked for.

    Only wider real floating types are compressed.
    """
    is_wider = dtype in (tf.float32, tf.float64)
    return wire_dtype if is_wider and wire_dtype is not None else dtype


def is_differentiable(dtype: tf.DType) -> bool:
    """Whether gradients flow through tensors of a type."""
    return bool(dtype.is_floating or dtype.is_complex)


def dtype_of(value: Any) -> tf.DType:
    """The type that a value has as a tensor."""
    if hasattr(value, "dtype"):
        return tf.as_dtype(value.dtype)
    return tf.convert_to_tensor(value).dtype
