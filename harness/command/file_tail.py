"""The lines that a program adds to a file, each with the time at which it was there."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

POLL_SEC: Final = 0.02
"""How often to look: a line is timed that exactly."""
_MOST_AT_ONCE: Final = 2**20


class FileTail:
    """A file that is looked at while a program writes it.

    Attributes:
      lines: Those that are complete, without their ends, and when each was there, in
        nanoseconds.
      num_beginnings: How often it has begun, so that all lines are new.
    """

    def __init__(self, path: Path, written_ns: int) -> None:
        """Prepares to look."""
        self.lines: list[tuple[int, bytes]] = []
        self.num_beginnings = 0
        self._path, self._written_ns = path, written_ns
        self._file, self._offset, self._rest, self._rest_ns = (0, 0), 0, b"", 0

    def look(self, now_ns: int) -> None:
        """Takes the lines that are new.

        A file in place of it, or one that begins anew, is read from its beginning. What
        cannot be read is tried again later.
        """
        with contextlib.suppress(OSError):
            facts = self._path.stat()
            if facts.st_mtime_ns == self._written_ns:
                return
            if (facts.st_dev, facts.st_ino) != self._file or (
                facts.st_size < self._offset
            ):
                self._file = facts.st_dev, facts.st_ino
                self._offset, self._rest = 0, b""
                self.lines.clear()
                self.num_beginnings += 1
            if facts.st_size > self._offset:
                self._take(now_ns)

    def end(self) -> None:
        """Takes the last line, which need not have an end."""
        if self._rest:
            self.lines.append((self._rest_ns, self._rest))
            self._rest = b""

    def _take(self, now_ns: int) -> None:
        # A pipe in its place would be waited for.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            chunk = os.pread(descriptor, _MOST_AT_ONCE, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(chunk)
        self._rest_ns = now_ns
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self.lines += [(now_ns, line) for line in lines]
