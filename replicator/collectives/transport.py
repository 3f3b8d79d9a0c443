"""Transport: the types in which tensors are sent, and the vectors that carry several.

TensorFlow's collective ops support few types. Tensors that are only moved are sent as a
type of the same width; sums use a wider integer or pairs of floats. Results have the
same bits as with the type itself.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from replicator.core.validation import format_value, is_one_of
from replicator.errors import CollectiveTypeError, OptimizerOptionError


class Wire(NamedTuple):
    op: str  # ``Cast`` or ``Bitcast``, by which they are converted; empty for neither.
    dtype: tf.DType  # The type that is sent.

    def convert(self, tensor: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
        """To the type that is sent, or from there to the tensor's own."""
        by = {"": lambda same, _: same, "Cast": tf.cast, "Bitcast": tf.bitcast}
        return by[self.op](tensor, dtype or self.dtype)


_AS_IT_IS = {
    dtype: Wire("", dtype)
    for dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
}
_BOTH = _AS_IT_IS | {
    tf.int8: Wire("Cast", tf.int32),
    tf.uint8: Wire("Cast", tf.int32),
    tf.uint64: Wire("Bitcast", tf.int64),
    tf.complex128: Wire("Bitcast", tf.float64),
}
# How values of a type are added over workers.
_ADDED = _BOTH | {
    tf.bfloat16: Wire("", tf.bfloat16),
    tf.int16: Wire("Cast", tf.int32),
    tf.uint16: Wire("Cast", tf.int32),
    tf.uint32: Wire("Cast", tf.int64),
    tf.complex64: Wire("Bitcast", tf.float32),
}
# How they are gathered or broadcast.
_MOVED = _BOTH | {
    tf.bool: Wire("Cast", tf.int32),
    tf.int16: Wire("Bitcast", tf.float16),
    tf.uint16: Wire("Bitcast", tf.float16),
    tf.bfloat16: Wire("Bitcast", tf.float16),
    tf.uint32: Wire("Bitcast", tf.int32),
    tf.complex64: Wire("Bitcast", tf.int64),
    tf.dtypes.experimental.float8_e4m3fn: Wire("Cast", tf.float32),
    tf.dtypes.experimental.float8_e5m2: Wire("Cast", tf.float32),
}


def wire_over_workers(dtype: tf.DType, kind: str) -> Wire:
    """How a type is sent between workers by a collective of a kind."""
    table = _ADDED if kind == "all_reduce" else _MOVED
    if dtype not in table:
        raise CollectiveTypeError(
            f"{kind} of {dtype.name} cannot be sent between worker processes: "
            "TensorFlow's collective ops carry numbers and bool only; encode the value "
            "as numbers first (such as tf.io.decode_raw of a string), or use the "
            "in_graph backend"
        )
    return table[dtype]


# Where tensors leave a memory of one program, the sender rounds them to nearest, an
# owner adds them in float32, and rounds once before they are sent back. So with unit
# roundoff u (2^-8 of bfloat16, 2^-11 of float16) the error of a mean is at most
#
#     u * (sum_r |g_r| / R) * (1 + u) + u * |mean|.
#
# NCCL and stock strategies add in 16 bits; sparse values are rounded everywhere.

_COMPRESSED = {"bfloat16": tf.bfloat16, "float16": tf.float16}


def check_compression(compression: str | None) -> tf.DType | None:
    """Returns the type in which tensors are sent, or None for their own."""
    if compression is None:
        return None
    if not is_one_of(compression, _COMPRESSED):
        raise OptimizerOptionError(
            f"compression={format_value(compression)} is unknown; use 'bfloat16' (the "
            "exponent range of float32, 8 significant bits), 'float16' (11 significant "
            "bits, needs loss_scale), or None"
        )
    return _COMPRESSED[compression]


def positions_by_dtype(tensors: Iterable[Any]) -> dict[tf.DType, list[int]]:
    """The positions of tensors by type; types in the order of their first tensor."""
    positions: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        positions.setdefault(tensor.dtype, []).append(position)
    return positions


def num_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """The static size of a tensor; 0 where a dimension is unknown."""
    return int((shape.num_elements() or 0) * dtype.size)


def fill(
    keys: Sequence[Hashable],
    sizes: Sequence[int],
    *,
    limit: int,
    least: int | None = None,
    alone_from: int | None = None,
) -> list[tuple[int, ...]]:
    """Puts tensors of one key into buckets of a limited size."""
    # With a least size, buckets become smaller towards the end. A reduction that starts
    # as soon as its operands are computed hides behind what is computed after them; the
    # last one hides behind nothing. So a bucket is full at half of what is left of its
    # key, within bounds.
    left: collections.Counter[Hashable] = collections.Counter()
    for key, size in zip(keys, sizes, strict=True):
        left[key] += size if size < limit else 0
    buckets: list[tuple[int, ...]] = []
    is_open: dict[Hashable, tuple[list[int], int, int]] = {}
    for position, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        if alone_from is not None and not 0 < size < alone_from:
            buckets.append((position,))
            continue
        full_at = limit if least is None else min(max(left[key] // 2, least), limit)
        members, total, most = is_open.pop(key, ([], 0, full_at))
        if members and total >= (least or 0) and total + size > most:
            buckets.append(tuple(members))
            members, total, most = [], 0, full_at
        left[key] -= size
        members, total = [*members, position], total + size
        if least is not None and total >= most:
            buckets.append(tuple(members))
        else:
            is_open[key] = members, total, most
    buckets += [tuple(members) for members, _, _ in is_open.values()]
    return buckets if least is None else sorted(buckets, key=max)


def pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The elements of some tensors of one type as one vector."""
    flat = [v if v.shape.rank == 1 else tf.reshape(v, [-1]) for v in values]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def unpack(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """The tensors of which a vector was packed; their shapes are static."""
    parts = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [
        part if shape.rank == 1 else tf.reshape(part, shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]
