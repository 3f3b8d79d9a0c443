"""Grows the heap of a process before it is timed, as its own steps would later.

With an allocator that keeps freed memory, the heap of a program still grows for some
steps: buffers of different sizes leave holes that the next ones do not fit into. Each
growth takes page faults, which the steps of a long training do not have. A relay has no
time for a dozen warm-up steps of every process, so the pages are made at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Final

FRACTION: Final = 0.25
"""Of the memory that a process has after its first steps.

"""
_PAGE_BYTES: Final = 4096
_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo(ctypes.Structure):
    """What ``mallinfo2(3)`` returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """Pages that were made for the growth of the heap."""

    num_bytes: int = 0  # How many bytes; 0 where nothing is reserved.
    # Free space at the end of the heap just after, which also has pages that are not
    # made yet.
    top_bytes: int = 0

    def unused_bytes(self) -> int:
        """Returns how much of it the heap has not grown into so far."""
        if not self.num_bytes:
            return 0
        num_not_made = self.top_bytes - self.num_bytes
        return min(max(_top_bytes(_libc()) - num_not_made, 0), self.num_bytes)


def reserve(fraction: float, proc: Path = Path("/proc/self")) -> Reservation:
    """Adds to the heap of this process, and makes its pages.

    Only for an allocator that keeps what is freed; another would give it back. Nothing
    is reserved if the fraction is 0, or where the C library is not glibc 2.33 or newer,
    which cannot say how much of it was used.
    """
    libc = _libc()
    if not fraction or not hasattr(libc, "mallinfo2"):
        return Reservation()
    num_pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
    num_bytes = round(fraction * num_pages) * _PAGE_BYTES
    address = libc.malloc(num_bytes)
    if not address:
        return Reservation()
    ctypes.memset(address, 0, num_bytes)
    libc.free(address)
    return Reservation(num_bytes=num_bytes, top_bytes=_top_bytes(libc))


def _top_bytes(libc: ctypes.CDLL) -> int:
    """Free space at the end of the main heap."""
    return int(libc.mallinfo2().keepcost)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _MallInfo
    return libc
