"""Intercepts TensorFlow's calls of ``listen``.

TensorFlow opens its port and accepts connections in one call, in C++ and with Python's
lock held, without a hook in between: whoever looks for the socket from another thread
comes too late. So the pointers through which its libraries call
``listen`` (their linkage tables, ELF) are replaced for that call. 64-bit Linux only.
test_ports notices when this breaks.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LIBRARIES = "libtensorflow"
_NAME = b"listen\0"
_EPERM = 1
# <elf.h>
_MAGIC_64_LITTLE = b"\x7fELF\x02\x01"
_PT_DYNAMIC = 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_JMPREL = 2, 5, 6, 23
_SYMBOL_BYTES, _RELOCATION = 24, struct.Struct("<QQq")
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, use_errno=True)


@contextlib.contextmanager
def before_listen(prepare: Callable[[int], None]) -> Iterator[None]:
    """Calls a function on each socket before TensorFlow listens on it."""
    slots = _slots()
    libc = ctypes.CDLL(None, use_errno=True)
    real = libc.listen

    def listen(descriptor: int, backlog: int) -> int:
        try:
            prepare(descriptor)
        except Exception:  # noqa: BLE001 (it would be lost in C++, which gets an errno)
            ctypes.set_errno(_EPERM)
            return -1
        return int(real(descriptor, backlog))

    hook = _FUNCTION(listen)
    pointer = ctypes.cast(hook, ctypes.c_void_p).value
    assert pointer is not None
    before = [_exchange(libc, slot, pointer) for slot in slots]
    try:
        yield
    finally:
        for slot, value in zip(slots, before, strict=True):
            _exchange(libc, slot, value)


def _slots() -> list[int]:
    """Where the pointers to ``listen`` of TensorFlow's libraries are in memory."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        raise OSError(f"{sys.platform} is not Linux on 64 bits")
    slots = [
        slot
        for path, base in _libraries().items()
        for slot in _slots_of(Path(path), base)
    ]
    if not slots:
        raise OSError(f"no loaded {_LIBRARIES}*.so calls listen")
    return slots


def _libraries() -> dict[str, int]:
    """Path and first address of each loaded library of TensorFlow."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) > 5 and Path(parts[5]).name.startswith(_LIBRARIES):  # noqa: PLR2004 (addresses, rights, offset, device, inode, path)
            found.setdefault(parts[5], int(parts[0].partition("-")[0], 16))
    return found


def _slots_of(path: Path, base: int) -> list[int]:
    with path.open("rb") as file:
        header = file.read(64)
        if not header.startswith(_MAGIC_64_LITTLE):
            raise OSError(f"{path.name} is not a little-endian ELF library of 64 bits")
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
    dynamic: dict[int, int] = {}
    for at in range(0, len(table), size):
        # Kind and rights, then offset, address, physical address, bytes.
        kind, _, _, address, _, length = struct.unpack_from("<IIQQQQ", table, at)
        if kind == _PT_DYNAMIC:
            entries = ctypes.string_at(base + address, length)
            dynamic.update(struct.iter_unpack("<QQ", entries))
    needed = (_DT_STRTAB, _DT_SYMTAB, _DT_JMPREL, _DT_PLTRELSZ)
    if not all(tag in dynamic for tag in needed):
        return []
    names, symbols, relocations, length = (dynamic[tag] for tag in needed)
    slots = []
    for slot, info, _ in _RELOCATION.iter_unpack(ctypes.string_at(relocations, length)):
        symbol = symbols + (info >> 32) * _SYMBOL_BYTES
        name = names + int.from_bytes(ctypes.string_at(symbol, 4), "little")
        if ctypes.string_at(name, len(_NAME)) == _NAME:
            slots.append(base + slot)
    return slots


def _exchange(libc: ctypes.CDLL, slot: int, value: int) -> int:
    """Writes a pointer into a linkage table; returns what it was."""
    page = slot & -mmap.PAGESIZE
    rights = mmap.PROT_READ | mmap.PROT_WRITE  # some builds protect their tables
    length = ctypes.c_size_t(mmap.PAGESIZE)
    if libc.mprotect(ctypes.c_void_p(page), length, rights):
        error = ctypes.get_errno()
        raise OSError(error, f"mprotect: {os.strerror(error)}")
    pointer = ctypes.c_uint64.from_address(slot)
    before, pointer.value = pointer.value, value
    return before
