"""Wire types: the types in which tensors are sent between workers.

TensorFlow's collective ops support few types. Tensors that are only moved are sent as a
type of the same width; sums use a wider integer or pairs of floats. Results have the
same bits as with the type itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from replicator.errors import CollectiveTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

_REDUCED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_MOVED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Type that no collective op takes -> how it is added: by which op, as what.
_ADDED_AS = {
    tf.int8: ("Cast", tf.int32),
    tf.uint8: ("Cast", tf.int32),
    tf.int16: ("Cast", tf.int32),
    tf.uint16: ("Cast", tf.int32),
    tf.uint32: ("Cast", tf.int64),
    tf.uint64: ("Bitcast", tf.int64),
    tf.complex64: ("Bitcast", tf.float32),
    tf.complex128: ("Bitcast", tf.float64),
}
# The same for types that are moved only.
_MOVED_AS = {
    tf.bool: ("Cast", tf.int32),
    tf.int8: ("Cast", tf.int32),
    tf.uint8: ("Cast", tf.int32),
    tf.int16: ("Bitcast", tf.float16),
    tf.uint16: ("Bitcast", tf.float16),
    tf.bfloat16: ("Bitcast", tf.float16),
    tf.uint32: ("Bitcast", tf.int32),
    tf.uint64: ("Bitcast", tf.int64),
    tf.complex64: ("Bitcast", tf.int64),
    tf.complex128: ("Bitcast", tf.float64),
    tf.dtypes.experimental.float8_e4m3fn: ("Cast", tf.float32),
    tf.dtypes.experimental.float8_e5m2: ("Cast", tf.float32),
}


class Wire(NamedTuple):
    """As what tensors of one type are sent."""

    op: str  # ``Cast`` or ``Bitcast``, by which they are converted; empty for neither.
    dtype: tf.DType  # The type that is sent.

    def convert(self, tensor: tf.Tensor) -> tf.Tensor:
        """To the type that is sent."""
        return _CONVERSIONS[self.op](tensor, self.dtype)

    def restore(self, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Back to the tensor's own type."""
        return _CONVERSIONS[self.op](tensor, dtype)


_CONVERSIONS: dict[str, Callable[[tf.Tensor, tf.DType], tf.Tensor]] = {
    "": lambda tensor, _: tensor,
    "Cast": tf.cast,
    "Bitcast": tf.bitcast,
}


def added(dtype: tf.DType) -> Wire:
    """How a type is reduced over workers."""
    if dtype in _REDUCED:
        return Wire("", dtype)
    return _look_up(_ADDED_AS, dtype, "all_reduce")


def moved(dtype: tf.DType, kind: str) -> Wire:
    """How a type is gathered or broadcast over workers."""
    if dtype in _MOVED:
        return Wire("", dtype)
    return _look_up(_MOVED_AS, dtype, kind)


def _look_up(
    table: dict[tf.DType, tuple[str, tf.DType]], dtype: tf.DType, kind: str
) -> Wire:
    if dtype not in table:
        raise CollectiveTypeError(
            f"{kind} of {dtype.name} cannot be sent between worker processes: "
            "TensorFlow's collective ops carry numbers and bool only; encode the value "
            "as numbers first (such as tf.io.decode_raw of a string), or use the "
            "in_graph backend"
        )
    return Wire(*table[dtype])
