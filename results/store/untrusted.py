"""Reads files that anybody may have made, or damaged: the only place that does.

A file is not there (None), is not what it should be (``DamagedFileError``), or the file
system does not say (``UnavailableRecordError``). Taken for the first, the third makes a
sweep measure again what is there; for the second, it leaves a number out.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from results import errors

if TYPE_CHECKING:
    import pathlib

MAX_BYTES: Final = 2**28
"""Larger files are not records: a million steps of several processes fit."""
_CHUNK_BYTES = 2**20
_ABSENT = (FileNotFoundError, NotADirectoryError)
_NO_FILE = {
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is not a regular file",
    errno.ENXIO: "it is not a regular file",
}
# A pipe must not be waited for, and a link may lead to a file of the reader's.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


class DamagedFileError(ValueError):
    """A file that is not what it should be; says why."""


def read_bytes(
    path: pathlib.Path, *, max_bytes: int = MAX_BYTES, start: int = 0
) -> bytes | None:
    """Returns the content of a regular file, read once; None if there is no file."""
    try:
        descriptor = os.open(path, _FLAGS)
    except _ABSENT:
        return None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise DamagedFileError(_NO_FILE[error.errno]) from error
        raise errors.UnavailableRecordError(path, error) from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedFileError(_NO_FILE[errno.EISDIR])
        begin = max(0, facts.st_size + start) if start < 0 else start
        os.lseek(descriptor, begin, os.SEEK_SET)
        content = bytearray()
        # The size is a claim: files of /proc say 0, and a file can grow.
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            content += chunk
            size = max(len(content), facts.st_size - begin)
            if size > max_bytes:
                raise DamagedFileError(f"{size} bytes, at most {max_bytes} are read")
        return bytes(content)
    except OSError as error:
        raise errors.UnavailableRecordError(path, error) from error
    finally:
        os.close(descriptor)


def read_text(path: pathlib.Path, *, max_bytes: int = MAX_BYTES) -> str | None:
    """Returns the content of a regular UTF-8 file; None if there is no file."""
    content = read_bytes(path, max_bytes=max_bytes)
    try:
        return None if content is None else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(str(error)) from error


def tail(path: pathlib.Path, num_bytes: int) -> str:
    """Returns the last of a log that a program may write without end; else ""."""
    try:
        # What was written in the meantime comes after them.
        content = read_bytes(path, start=-num_bytes) or b""
    except (DamagedFileError, errors.UnavailableRecordError):
        return ""
    return content[-num_bytes:].decode("utf-8", errors="replace")


def parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DamagedFileError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise DamagedFileError(
            "not a record: lists or objects are nested too deeply"
        ) from error


def parsed_object(text: str | bytes) -> dict[str, Any]:
    data = parsed(text)
    if not isinstance(data, dict):
        raise DamagedFileError(f"holds a {type(data).__name__}, must hold an object")
    return data


def is_there(path: pathlib.Path) -> bool:
    """Whether there is anything at ``path``, a link to nothing included."""
    try:
        path.lstat()
    except _ABSENT:
        return False
    except OSError as error:
        raise errors.UnavailableRecordError(path, error) from error
    return True


def names_in(folder: pathlib.Path) -> frozenset[str]:
    """Returns the names in a folder; none if there is no folder."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - only names are needed
    except _ABSENT:
        return frozenset()
    except OSError as error:
        raise errors.UnavailableRecordError(folder, error) from error


def folders_with(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Returns the folders in a folder that have something of this name, sorted."""
    folders = (folder / inner for inner in sorted(names_in(folder)))
    return [inner for inner in folders if is_there(inner / name)]
