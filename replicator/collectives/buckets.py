"""Buckets: small tensors that are sent together; a transfer costs more than a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


def positions_by_dtype(tensors: Iterable[Any]) -> dict[tf.DType, list[int]]:
    """The positions of tensors by type; types in the order of their first tensor."""
    found: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(position)
    return found


def num_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """The static size of a tensor; 0 where a dimension is unknown."""
    if not shape.is_fully_defined():
        return 0
    return int(shape.num_elements() * dtype.size)


def fill(
    keys: Sequence[Hashable],
    sizes: Sequence[int],
    *,
    limit: int,
    alone_from: int | None = None,
) -> list[tuple[int, ...]]:
    """Puts tensors of one key into buckets of a limited size."""
    buckets: list[tuple[int, ...]] = []
    is_open: dict[Hashable, tuple[list[int], int]] = {}
    for position, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        if alone_from is not None and not 0 < size < alone_from:
            buckets.append((position,))
            continue
        members, total = is_open.pop(key, ([], 0))
        if members and total + size > limit:
            buckets.append(tuple(members))
            members, total = [], 0
        is_open[key] = ([*members, position], total + size)
    return buckets + [tuple(members) for members, _ in is_open.values()]


def fill_towards_end(
    keys: Sequence[Hashable], sizes: Sequence[int], *, least: int, most: int
) -> list[tuple[int, ...]]:
    """Puts tensors of one key into buckets that become smaller towards the end.

    A reduction that starts as soon as its operands are computed hides behind what is
    computed after them; the last one hides behind nothing. So a bucket is full at half
    of what is left of its key, within bounds.
    """
    left: dict[Hashable, int] = {}
    for key, size in zip(keys, sizes, strict=True):
        left[key] = left.get(key, 0) + (size if size < most else 0)
    buckets: list[tuple[int, ...]] = []
    is_open: dict[Hashable, tuple[list[int], int, int]] = {}
    for position, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        if not 0 < size < most:
            buckets.append((position,))
            continue
        full_at = min(max(left[key] // 2, least), most)
        members, total, limit = is_open.pop(key, ([], 0, full_at))
        if total >= least and total + size > limit:
            buckets.append(tuple(members))
            members, total, limit = [], 0, full_at
        left[key] -= size
        members, total = [*members, position], total + size
        if total >= limit:
            buckets.append(tuple(members))
        else:
            is_open[key] = members, total, limit
    buckets += [tuple(members) for members, _, _ in is_open.values()]
    return sorted(buckets, key=max)


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
