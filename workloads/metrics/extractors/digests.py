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
    """Returns the digest of named arrays: names, types, shapes and values.

    Args:
      arrays: In any order; their memory layout does not matter.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # The same byte order on all machines.
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def of_path(path: pathlib.Path) -> str:
    """Returns the digest of a file, as ``sha256sum`` does, or of a folder.

    That of a folder covers the names and digests of all files in it.

    Raises:
      OSError: It cannot be read.
    """
    if path.is_dir():
        digest = hashlib.sha256()
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            name = file.relative_to(path).as_posix()
            digest.update(f"{of_path(file)}  {name}\n".encode())
        return digest.hexdigest()
    digest = hashlib.sha256()
    with path.open("rb") as file_object:
        while chunk := file_object.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
