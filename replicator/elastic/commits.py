"""Commits: checkpoints in files that are written again and again.

The kernel clears each new page of a file in memory, which takes longer than to write
it. So two files are written in turn, and keep their pages.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from replicator.checkpoint.manager import CheckpointManager
from replicator.errors import CheckpointError
from replicator.variables import ownership

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.checkpoint.inventory import Inventory

_COUNT = struct.Struct("<Q")


class Commits(CheckpointManager):
    """A manager of two files in a folder.

    A file begins with the count of steps and one, and with 0 while it is written.
    Arrays in NumPy's format follow: the texts of the checkpoint, and the variables in
    the order of their paths.
    """

    @property
    def latest_checkpoint(self) -> str | None:
        path = newest(Path(self.directory))
        return str(path) if count_of(path) else None

    def _write(self, inventory: Inventory) -> str:
        if inventory.others:
            return (
                f"a commit holds variables only, but {inventory.others[0]!r} is none; "
                "leave it out, and let the program make it as it was"
            )
        texts = [text.value for text in (self._metadata, *self._workers)]
        joined = tf.train.BytesList(value=texts).SerializeToString()
        count = json.loads(texts[0])["step"] + 1
        path = min(_files(Path(self.directory)), key=count_of)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            with path.open("r+b", buffering=0) as file:
                file.write(_COUNT.pack(0))
                np.save(file, np.frombuffer(joined, np.uint8))
                for _, variable in sorted(inventory.variables.items()):
                    value = np.asarray(variable.value())  # without a copy
                    np.save(file, value, allow_pickle=False)
                file.truncate()
                file.seek(0)
                file.write(_COUNT.pack(count))
        except (OSError, ValueError) as error:
            return (
                f"a commit could not be written to {str(path)!r}: {error}; the one "
                "before is still there; free memory, or pass another --memory-dir"
            )
        return ""

    def _read_texts(self, path: str) -> list[bytes]:
        with _opened(path) as file:
            return _texts(file)

    def _read(self, path: str, inventory: Inventory) -> None:
        with _opened(path) as file:
            _texts(file)  # skipped
            for _, variable in sorted(inventory.variables.items()):
                value = np.load(file).view(variable.dtype.as_numpy_dtype)
                ownership.fill(variable, value)


def newest(folder: Path) -> Path:
    """The file of the latest step of a folder; without a commit its count is 0."""
    return max(_files(folder), key=count_of)


def count_of(path: Path) -> int:
    """The count of a file, 0 if it is not complete."""
    with contextlib.suppress(OSError, struct.error), path.open("rb") as file:
        return int(*_COUNT.unpack(file.read(_COUNT.size)))
    return 0


def copy(source: Path, folder: Path) -> None:
    """Copies a commit to disk, where it takes the place of another one at once."""
    new = folder / "new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, new)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(_files(folder)[0])
    except OSError as error:
        raise CheckpointError(
            f"a commit could not be copied to {str(folder)!r}: {error}; free space "
            "there, or pass another --state-dir, and start again"
        ) from error


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "0", folder / "1"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    try:
        with Path(path).open("rb") as file:
            file.seek(_COUNT.size)
            yield file
    except (OSError, ValueError, EOFError, DecodeError) as error:
        raise CheckpointError(
            f"commit {path!r} could not be read: {error}; delete it, and start again"
        ) from error


def _texts(file: IO[bytes]) -> list[bytes]:
    return list(tf.train.BytesList.FromString(np.load(file).tobytes()).value)
