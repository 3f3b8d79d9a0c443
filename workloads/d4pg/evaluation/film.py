"""Films of episodes: animated PNG, which browsers play (other viewers show a still).

Each frame after the first has only the changed pixels and is transparent elsewhere.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGBA, _BITS = 6, 8
_KEEP, _OVER = 0, 1  # keep the previous frame; blend over it
_CHANNELS = 3
_COLOURS = 0xF8  # 32 of each channel take half the space of 256


def encode(frames: np.ndarray, *, frame_time_sec: float) -> bytes:
    """Returns a film that plays in a loop."""
    is_film = frames.ndim == 4 and frames.shape[-1] == _CHANNELS and len(frames)  # noqa: PLR2004
    if not is_film or frames.dtype != np.uint8:
        raise ValueError(
            "a film needs frames of shape [frames, height, width, 3] and type uint8, "
            f"but got {frames.shape} and {frames.dtype}"
        )
    count, height, width, _ = frames.shape
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, _BITS, _RGBA, 0, 0, 0)),
        _chunk(b"acTL", struct.pack(">II", count, 0)),
    ]
    number = 0
    time = (round(frame_time_sec * 1000), 1000)
    for index, pixels in enumerate(_changes(frames & _COLOURS)):
        control = struct.pack(
            ">IIIIIHHBB", number, width, height, 0, 0, *time, _KEEP, _OVER
        )
        chunks.append(_chunk(b"fcTL", control))
        number += 1
        if index == 0:
            chunks.append(_chunk(b"IDAT", pixels))
        else:
            chunks.append(_chunk(b"fdAT", struct.pack(">I", number) + pixels))
            number += 1
    return b"".join([_SIGNATURE, *chunks, _chunk(b"IEND", b"")])


def _changes(frames: np.ndarray) -> Iterator[bytes]:
    """Yields the compressed rows of each frame, transparent where nothing changed."""
    before = None
    for frame in frames:
        alpha = np.full((*frame.shape[:2], 1), 255, np.uint8)
        pixels = np.concatenate([frame, alpha], axis=2)
        if before is not None:
            pixels[(frame == before).all(axis=2)] = 0
        before = frame
        # Each row starts with the number of its filter: none, or minus the row above.
        rows = pixels.reshape(len(pixels), -1)
        below = np.concatenate([rows[:1], rows[1:] - rows[:-1]])
        yield min(
            (
                zlib.compress(np.insert(filtered, 0, number, axis=1).tobytes(), 9)
                for number, filtered in ((0, rows), (2, below))
            ),
            key=len,
        )


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
    )
