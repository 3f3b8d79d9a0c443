"""SHA-256 of what determines a score: weights and reference images."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

_CHUNK_BYTES = 2**20


def of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the digest of named arrays: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # The same byte order on all machines.
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def of_path(path: pathlib.Path) -> str:
    """Returns the digest of a file, as ``sha256sum`` does."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
