"""Which tensors repeat each pixel of an image, or add the pixels of each block.

A *block* is 2 x 2 pixels. There is an operation that repeats pixels, but most programs
tile and reshape, in one of many ways, and their gradients reshape and sum. So numbers
are sent through the operations as they were traced, and what comes out is compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 2
# Repeating rows, then columns, takes six operations, and their gradients seven.
_MAX_OPS = 8
_RESHAPES = frozenset({"Reshape", "ExpandDims", "Squeeze"})
_REPEATS = frozenset({"Tile", "ResizeNearestNeighbor"})
_SUMS = frozenset({"Sum", "ResizeNearestNeighborGrad"})


def repeated(tensor: Any) -> Any:
    """Finds the tensor whose pixels are those of an image, each of them in a block.

    Args:
      tensor: The image, ``[batch, height, width, channels]``, of an even height and
        width.
    """
    shape = _one_channel(tensor, tensor)
    if not shape:
        return None
    numbers = np.arange(math.prod(shape) // BLOCK**2)
    expected = _repeat(numbers.reshape(_halved(shape)))
    ops: list[Any] = []
    source = tensor
    while len(ops) < _MAX_OPS and _is_any(source.op, _RESHAPES | _REPEATS):
        ops.insert(0, source.op)
        source = source.op.inputs[0]
        found = _through(ops, tensor, source, numbers)
        if found is not None and np.array_equal(found, expected):
            return source
    return None


def added(tensor: Any) -> Any:
    """Finds the sums of all blocks of an image that nothing else uses."""
    shape = _one_channel(tensor, tensor)
    if not shape:
        return None
    # Sums of random numbers are equal where they are of the same pixels.
    numbers = np.random.default_rng(0).integers(1 << 40, size=shape)
    expected = _sum(numbers).ravel()
    ops: list[Any] = []
    result = tensor
    while len(ops) < _MAX_OPS:
        users = result.consumers()
        if len(users) != 1 or not _is_any(users[0], _RESHAPES | _SUMS):
            return None
        ops.append(users[0])
        (result,) = users[0].outputs
        found = _through(ops, tensor, tensor, numbers)
        if found is not None and np.array_equal(found.ravel(), expected):
            return result
    return None


def _is_any(op: Any, types: frozenset[str]) -> bool:
    """Whether it is of a type, and waits for nothing but its inputs."""
    return op.type in types and not op.control_inputs


def _one_channel(tensor: Any, image: Any) -> tuple[int, ...]:
    """The shape of a tensor as if images had one channel; empty if it is not known.

    That is enough, since no operation here mixes channels: they are always last.
    """
    shape, channels = tensor.shape, image.shape[-1]
    if not shape.is_fully_defined() or not shape.rank or shape[-1] != channels:
        return ()
    return (*shape[:-1], 1)


def _through(ops: Sequence[Any], image: Any, source: Any, numbers: Any) -> Any:
    """What operations in a row make of numbers; None if that is not known."""
    value = _reshape(numbers, _one_channel(source, image))
    for op in ops:
        if value is None:
            break
        value = _result(op, value, _one_channel(op.outputs[0], image))
    return value


def _result(op: Any, value: Any, shape: tuple[int, ...]) -> Any:
    if op.type in _RESHAPES:
        return _reshape(value, shape)
    if op.type == "Tile":
        # How often may be computed, but shapes are known.
        is_known = len(shape) == value.ndim
        return np.tile(value, np.array(shape) // value.shape) if is_known else None
    if op.type == "Sum":
        return _sum_over(op, value)
    is_repeat = op.type == "ResizeNearestNeighbor"
    fine, coarse = (shape, value.shape) if is_repeat else (value.shape, shape)
    if op.get_attr("align_corners") or not shape or _halved(fine) != coarse:
        return None
    return _repeat(value) if is_repeat else _sum(value)


def _sum_over(op: Any, value: Any) -> Any:
    axes = tf.get_static_value(op.inputs[1])
    if axes is None:
        return None
    axes = {int(axis) % value.ndim for axis in np.ravel(axes)}
    if value.ndim - 1 in axes:
        return None  # channels are added
    return value.sum(tuple(axes), keepdims=op.get_attr("keep_dims"))


def _reshape(value: Any, shape: tuple[int, ...]) -> Any:
    is_known = shape and math.prod(shape) == value.size
    return value.reshape(shape) if is_known else None


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, height, width, channels = shape
    return (batch, height // BLOCK, width // BLOCK, channels)


def _repeat(image: Any) -> Any:
    return image.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)


def _sum(image: Any) -> Any:
    batch, height, width, channels = _halved(image.shape)
    return image.reshape(batch, height, BLOCK, width, BLOCK, channels).sum((2, 4))
