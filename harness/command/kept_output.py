"""What is kept of a program's output: its beginning and its end, however much it is."""

from __future__ import annotations

import os
from typing import Final

HEAD_BYTES: Final = 4 * 2**20
TAIL_BYTES: Final = 64 * 2**10


class KeptOutput:
    """One stream of a program, written to a file within limits.

    Attributes:
      num_bytes: How much came.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._tail = b""
        self.num_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Writes what is of the beginning, and holds what may be of the end."""
        left = max(0, HEAD_BYTES - self.num_bytes)
        self.num_bytes += len(chunk)
        _write(self._descriptor, chunk[:left])
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def end(self) -> None:
        """Writes the end of a long output, and how much lies between."""
        left_out = self.num_bytes - HEAD_BYTES - TAIL_BYTES
        if left_out > 0:
            mark = f"\n[... {left_out} bytes left out ...]\n".encode()
            _write(self._descriptor, mark + self._tail)
        elif self.num_bytes > HEAD_BYTES:
            _write(self._descriptor, self._tail[HEAD_BYTES - self.num_bytes :])

    @property
    def last_bytes(self) -> bytes:
        """The end of what came."""
        return self._tail

    @property
    def tail(self) -> str:
        """The last lines."""
        return "\n".join(
            self._tail.decode("utf-8", errors="replace").splitlines()[-30:]
        )


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
