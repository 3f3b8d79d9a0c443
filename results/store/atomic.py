"""Writes a file atomically: a reader sees either the old bytes or the new ones."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Final

from results import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# A suspended owner of a study is succeeded like a dead one. When it goes on, it must
# not write over what its successor has measured, so each write asks once more who owns
# it.
_held: dict[pathlib.Path, Callable[[], bool]] = {}


@contextlib.contextmanager
def fenced(root: pathlib.Path, is_owner: Callable[[], bool]) -> Iterator[None]:
    """Lets writes below a study ask for its owner while the block runs."""
    key = root.absolute()
    _held[key] = is_owner
    try:
        yield
    finally:
        del _held[key]


def check_fence(path: os.PathLike[str]) -> None:
    """Raises if what is about to be written belongs to a study that was lost."""
    whole = pathlib.Path(path).absolute()
    for root, is_owner in _held.items():
        if whole.is_relative_to(root) and not is_owner():
            raise errors.StudyLostError(root)


TEMPORARY_PREFIX = ".tmp-"
"""Files with this name were left by a killed writer; readers skip them."""


def check_reachable(path: pathlib.Path) -> None:
    """Raises if the file system refuses to look at ``path``; it may be missing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()


def sync(path: pathlib.Path) -> None:
    """Syncs a file, or the names in a directory: they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def named(path: pathlib.Path) -> Iterator[None]:
    """Adds the path to errors of calls that know a descriptor only."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


FREE_SPACE: Final = "free space or choose a directory that this user can write to"


@contextlib.contextmanager
def writing(
    path: pathlib.Path, advice: str = FREE_SPACE, *, what: str = ""
) -> Iterator[None]:
    """Raises WriteStoreError, which says what to do, where a file is not written."""
    try:
        yield
    except OSError as error:
        raise errors.WriteStoreError(
            f"cannot write {what}{str(path)!r}: {error.strerror or error}; {advice}"
        ) from error


def sync_files(folder: pathlib.Path) -> None:
    """Syncs the files of a folder, which others wrote, and their names."""
    for entry in folder.iterdir():
        if entry.is_file() and not entry.is_symlink():
            sync(entry)
    sync(folder)


def remove_leftovers(folder: pathlib.Path, below: Sequence[str] = ()) -> None:
    """Removes what writers left that were killed, or could not remove it."""
    for pattern in ("", *below):
        with contextlib.suppress(OSError):  # harmless where they are
            for path in folder.glob(f"{pattern}{TEMPORARY_PREFIX}*"):
                if path.is_file() and not path.is_symlink():
                    path.unlink(missing_ok=True)


def write_text(path: pathlib.Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes ``content``: temporary file, fsync, rename, fsync of the folder."""
    # Both names lead through the same mounts then, which the current folder need not.
    path = path.absolute()
    descriptor, name = tempfile.mkstemp(
        prefix=TEMPORARY_PREFIX, suffix=f"-{path.name}", dir=path.parent
    )
    temporary = pathlib.Path(name)
    try:
        with named(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; records are as readable as any other file.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        check_fence(path)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)
