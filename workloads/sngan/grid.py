"""Grids of generated images, for viewing."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from workloads.metrics.extractors.base import to_uint8

MOST_COLUMNS = 10
NUM_ROWS = 6
_GAP = 1  # pixels between images
_SMALLEST_SIZE = 32  # smaller images are enlarged, pixel by pixel


def encode(images: np.ndarray, num_columns: int) -> bytes:
    """Returns a grid as PNG."""
    pixels = to_uint8(images, low=-1.0, high=1.0)
    factor = max(_SMALLEST_SIZE // pixels.shape[1], 1)
    pixels = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    size = pixels.shape[1] + _GAP
    num_rows = len(pixels) // num_columns
    canvas = np.full((num_rows * size, num_columns * size, 3), 255, np.uint8)
    for index, image in enumerate(pixels):
        row, column = divmod(index, num_columns)
        top, left = row * size, column * size
        canvas[top : top + size - _GAP, left : left + size - _GAP] = image
    encoded: bytes = tf.io.encode_png(canvas).numpy()
    return encoded
