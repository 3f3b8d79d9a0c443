"""Writes what a report is made of: one way, with one message for what can go wrong."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from results import errors
from results.store import atomic

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping


def check(path: pathlib.Path, *, what: str = "") -> str:
    """Returns how messages call a file that is new or a regular one."""
    shown = f"{what} {str(path)!r}".strip()
    if path.exists() and not path.is_file():
        raise errors.WriteStoreError(
            f"cannot write {shown}: it is not a regular file, and would be replaced by"
            " one; choose another"
        )
    return shown


def write(path: pathlib.Path, content: bytes | str, *, what: str = "") -> None:
    """Writes a file that is new or a regular one, and its folder if there is none."""
    shown = check(path, what=what)
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("utf-8") if isinstance(content, str) else content
        atomic.write_bytes(path, data)
    except OSError as error:
        if is_new:  # its name may not be on the disk, and the same command finds none
            with contextlib.suppress(OSError):
                path.unlink()
        raise errors.WriteStoreError(
            f"cannot write {shown}: {error.strerror or error}; choose a file in a"
            " folder that this user can write to"
        ) from error


def write_all(
    folder: pathlib.Path, files: Mapping[str, bytes | str], *, what: str
) -> list[pathlib.Path]:
    """Writes files below a folder and returns their paths."""
    if folder.exists() and not folder.is_dir():
        raise errors.WriteStoreError(
            f"cannot write {what} {str(folder)!r}: it is not a directory; choose a"
            " directory"
        )
    paths = [folder / name for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        write(path, content, what=f"file of {what}")
    return paths
