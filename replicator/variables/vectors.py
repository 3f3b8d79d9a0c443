"""Vectors: tensors of one type as one, because each op or transfer has a cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence


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
