"""Arrays in memory that a process and its children share.

The memory has no name: a child inherits its descriptor. Named shared memory is in
``/dev/shm``, which containers limit to 64 MB, and it outlives a killed process.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

ArrayLayout = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype of one array."""

_ALIGNMENT = 64  # of an array's first byte: a cache line


class SharedArrays:
    """Named arrays in one piece of shared memory, zero at first.

    Pages are allocated when first written, so unused parts take no memory.

    Attributes:
      descriptor: For children: pass it on with ``pass_fds``.
    """

    def __init__(
        self, layout: Sequence[ArrayLayout], descriptor: int | None = None
    ) -> None:
        self._layout = tuple(layout)
        offsets, size = [], 0
        for _, shape, dtype in self._layout:
            offsets.append(size)
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self.descriptor = _make_memory(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)
        self._arrays = {
            name: np.ndarray(shape, dtype, self._memory, offset)
            for (name, shape, dtype), offset in zip(self._layout, offsets, strict=True)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the array of that name; all processes see what is written to it."""
        return self._arrays[name]

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with its last array."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._arrays.clear()


def _make_memory(size: int) -> int:
    """Returns the descriptor of ``size`` bytes of zeros without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("d4pg-streams")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
