"""The n-th call of this process that reads below a folder fails."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import os
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EACCES)
CALLS = (
    *((os, name) for name in ("open", "read", "listdir", "scandir", "stat", "lstat")),
    (io, "open"),
    (builtins, "open"),
)


@dataclasses.dataclass
class FailingReads:
    """Lets the n-th call of this process that reads below a folder fail."""

    root: Path  # The folder.
    place: int = -1  # Which call fails, from 0 on; none if negative.
    number: int = errno.EIO  # The errno.
    count: int = 0  # How many calls there were.
    failed: str = ""  # Which call failed.

    def install(self, patch):
        """Puts itself in the place of the calls."""
        for module, name in CALLS:
            patch.setattr(module, name, self._wrapped(getattr(module, name)))

    def _wrapped(self, real):
        def call(path, *args, **options):
            if self._is_ours(path) and not self._is_writing(args, options):
                self.count += 1
                if self.count - 1 == self.place:
                    self.failed = f"{real.__name__} {path}"
                    # As of the system: that of a descriptor has no path.
                    named = () if isinstance(path, int) else (str(path),)
                    raise OSError(self.number, os.strerror(self.number), *named)
            return real(path, *args, **options)

        return call

    def _is_ours(self, path):
        if isinstance(path, int):
            link = pathlib.Path(f"/proc/self/fd/{path}")
            path = link.readlink() if link.is_symlink() else ""
        return str(self.root) in os.path.abspath(os.fsdecode(path))  # noqa: PTH100

    @staticmethod
    def _is_writing(args, options):
        mode = options.get("mode", args[0] if args else "r")
        if isinstance(mode, str):
            return bool(set(mode) & set("wxa+"))
        return bool(mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
