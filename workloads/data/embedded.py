"""Data sets that need no network: written once per machine, from installed packages."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

from workloads import child_process
from workloads.data import names

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

_MOST_SEC = 600.0


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Waits for the lock of a file, which the kernel releases if the process exits."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(name: str, *, version: str, module: str) -> pathlib.Path:
    """Writes a data set as TFRecords unless it already exists.

    Safe when several processes call it at once: one writes, the others wait for its
    lock, which is released if the process exits; TFDS renames the finished directory.
    """
    root = names.cache_dir()
    path = root / name / version
    if (path / "dataset_info.json").is_file():
        return path
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f"{name}.lock"):
            if not (path / "dataset_info.json").is_file():
                child_process.run_module(
                    module, str(root), title=f"writing {name}", most_sec=_MOST_SEC
                )
    except OSError as error:
        raise ValueError(
            f"{name} cannot be prepared under {str(root)!r} ({error.strerror}): "
            "set REPLICATOR_DATA_DIR to a directory that can be written"
        ) from error
    return path
