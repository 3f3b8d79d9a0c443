"""Something happens at the n-th call of this process that writes below a folder."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import os
import pathlib
import posix
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


NOT_OURS = (".lock", "stdout.log", "stderr.log")
"""The lock of the operating system; what trials write themselves."""
CALLS = ("open", "fsync", "replace", "rename", "link", "unlink", "mkdir")


class FaultyFile:
    """A file of which a write may fail, after half of it is written."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def write(self, content):
        if self._faults.is_due():
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._faults.fail("write")
        return int(self._file.write(content))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __iter__(self):
        return iter(self._file)

    def __getattr__(self, name):
        return getattr(self._file, name)


@dataclasses.dataclass
class FailingWrites:
    """Lets the n-th call of this process that writes below a folder fail."""

    root: Path  # The folder.
    place: int = -1  # Which call fails, from 0 on; none if negative.
    number: int = errno.EIO  # The errno.
    count: int = 0  # How many calls there were.
    failed: str = ""  # What has failed.
    before: Callable[[], None] = lambda: None  # Called before it fails.

    def is_due(self):
        """Counts a call; returns whether it has to fail."""
        self.count += 1
        return self.count - 1 == self.place

    def fail(self, what, path=None):
        """Fails as the system does."""
        self.failed = f"{what} {path or ''} {os.strerror(self.number)}"
        self.before()
        # The system says no path of a file that is open.
        named = None if path is None or isinstance(path, int) else str(path)
        raise OSError(self.number, os.strerror(self.number), named)

    def install(self, patch, *, is_synced=False):
        """Puts itself in the place of the calls."""
        if is_synced:
            patch.setattr(os, "fsync", posix.fsync)
        for name in CALLS:
            patch.setattr(os, name, self._call(name, getattr(os, name)))
        opener = self._opener(io.open)
        patch.setattr(io, "open", opener)
        patch.setattr(builtins, "open", opener)

    def _call(self, name, real):
        def wrapped(path, *args, **options):
            is_making = name != "open" or bool(args and args[0] & os.O_CREAT)
            if is_making and self._is_ours(path) and self.is_due():
                self.fail(name, path)
            return real(path, *args, **options)

        return wrapped

    def _opener(self, real):
        def wrapped(path, *args, **options):
            mode = options.get("mode", args[0] if args else "r")
            if not set(mode) & set("wxa+") or not self._is_ours(path):
                return real(path, *args, **options)
            return FaultyFile(real(path, *args, **options), self)

        return wrapped

    def _is_ours(self, path):
        if isinstance(path, int):
            link = pathlib.Path(f"/proc/self/fd/{path}")
            path = link.readlink() if link.is_symlink() else ""
        text = os.path.abspath(os.fspath(path))  # noqa: PTH100
        return str(self.root) in text and not text.endswith(NOT_OURS)
