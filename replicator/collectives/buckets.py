"""Buckets: small tensors that are sent together; a transfer costs more than a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    import tensorflow as tf


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
    """Puts tensors of one key into buckets of a limited size.

    Args:
      keys: Per tensor; one bucket holds tensors of one key.
      sizes: Bytes per tensor; 0 where they are unknown.
      limit: Most bytes of a bucket of several tensors.
      alone_from: Tensors of unknown size, or of so many bytes, are not joined with
        others; None joins all.

    Returns:
      Positions in each bucket. Those that are not full follow at the end, in the
      order of their last tensor.
    """
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
