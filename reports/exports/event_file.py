"""Event files of TensorBoard, written without TensorFlow and TensorBoard.

An event file is a sequence of TFRecords, each a serialized ``Event`` message. Only the
few fields that scalars and text need are written here: ``tensorflow/core/util/
event.proto``, ``summary.proto`` and ``tensor.proto`` number them. A test reads the
files back with TensorFlow's own reader.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types of protocol buffers
_DT_STRING: Final = 7
_FILE_VERSION: Final = "brain.Event:2"
_MASK_DELTA: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C, bits reversed
_ALL_ONES: Final = 0xFFFFFFFF
_SEVEN_BITS: Final = 0x7F
_NUM_BITS: Final = 8
_LARGEST_FLOAT: Final = 3.4028234663852886e38


def _table_entry(index: int) -> int:
    for _ in range(_NUM_BITS):
        index = (index >> 1) ^ (_POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = tuple(_table_entry(index) for index in range(256))


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of ``data``."""
    crc = _ALL_ONES
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> _NUM_BITS)
    return crc ^ _ALL_ONES


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) & _ALL_ONES
    return struct.pack("<I", (rotated + _MASK_DELTA) & _ALL_ONES)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > _SEVEN_BITS:
        found.append((value & _SEVEN_BITS) | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _message(number: int, data: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(data)) + data


def _event(wall_time: float, step: int, content: bytes) -> bytes:
    time = _key(1, _DOUBLE) + struct.pack("<d", wall_time)
    return _record(time + _key(2, _VARINT) + _varint(step) + content)


def scalar(tag: str, value: float, *, step: int, wall_time: float) -> bytes:
    """Returns the record of one scalar.

    Args:
      tag: Its name; a slash makes a group.
      value: Stored in single precision.
      step: Not negative.
      wall_time: Seconds since the epoch.
    """
    of_tag = _message(1, tag.encode())
    # Beyond single precision, the nearest value that it has.
    value = min(max(value, -_LARGEST_FLOAT), _LARGEST_FLOAT)
    of_value = _key(2, _FLOAT) + struct.pack("<f", value)
    return _event(wall_time, step, _message(5, _message(1, of_tag + of_value)))


def text(tag: str, content: str, *, wall_time: float) -> bytes:
    """Returns the record of a string, which TensorBoard shows as Markdown; step 0."""
    plugin = _message(1, _message(1, b"text"))
    tensor = _key(1, _VARINT) + _varint(_DT_STRING)
    tensor += _message(2, b"") + _message(8, content.encode())
    value = _message(1, tag.encode()) + _message(9, plugin) + _message(8, tensor)
    return _event(wall_time, 0, _message(5, _message(1, value)))


def contents(records: Iterable[bytes], *, wall_time: float) -> bytes:
    """Returns a whole event file."""
    version = _event(wall_time, 0, _message(3, _FILE_VERSION.encode()))
    return version + b"".join(records)
