"""Which characters are allowed in a record, in a message, on a terminal."""

from __future__ import annotations

import re
from typing import Any

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Moves a cursor, ends a line, or is not a character."""
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Terminates strings in other programs, or cannot be encoded in UTF-8."""


def label_of(value: Any) -> str:
    """What users say and read for a value; records may store another name of it."""
    return str(getattr(value, "label", getattr(value, "value", value)))


def printable(text: str) -> str:
    """Returns a string with escapes in place of terminal control characters."""
    return UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)


def storable(text: str, limit: int) -> str:
    """Returns a string with marks in place of characters that a record cannot store."""
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)[-limit:]
