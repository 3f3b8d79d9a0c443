"""Patches: which pixels each result of a convolution is made of.

Chellapilla, Puri and Simard 2006: with the patch of each result as a row, a convolution
is one product of matrices.
"""

from __future__ import annotations

import numpy as np


def pixels(
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    *,
    is_padded: bool,
) -> np.ndarray:
    """Numbers the pixels under the kernel, for each place that it is moved to."""
    rows, columns = (
        _under(*sizes, is_padded=is_padded)
        for sizes in zip(image, kernel, stride, strict=True)
    )
    # [rows, columns, height of the kernel, width of it]
    down, right = rows[:, None, :, None], columns[None, :, None, :]
    is_inside = (down >= 0) & (down < image[0]) & (right >= 0) & (right < image[1])
    found = np.where(is_inside, down * image[1] + right, image[0] * image[1])
    return found.reshape(len(rows) * len(columns), -1).astype(np.int32)


def uses(patches: np.ndarray, num_pixels: int) -> np.ndarray:
    """Numbers the elements of all patches that are one pixel, for each pixel."""
    flat = patches.ravel()
    elements = np.argsort(flat, kind="stable")  # by pixel, those of the padding last
    counts = np.bincount(flat, minlength=num_pixels + 1)
    first = np.cumsum(counts) - counts
    elements = elements[: first[num_pixels]]
    of_pixel = flat[elements]
    table = np.full((num_pixels, max(1, counts[:-1].max())), flat.size, np.int32)
    table[of_pixel, np.arange(elements.size) - first[of_pixel]] = elements
    return table


def _under(size: int, kernel: int, stride: int, *, is_padded: bool) -> np.ndarray:
    """``[places, kernel]``: what is under it in one direction; outside is padding."""
    places = -(-size // stride) if is_padded else (size - kernel) // stride + 1
    padding = max((places - 1) * stride + kernel - size, 0) if is_padded else 0
    first = np.arange(places) * stride - padding // 2
    return first[:, None] + np.arange(kernel)
