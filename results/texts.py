"""Which characters a text may hold: in a record, in a message, on a terminal."""

from __future__ import annotations

import re

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Moves a cursor, ends a line, or is no character at all."""
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Ends a text early in other programs, or is what UTF-8 cannot hold."""


def printable(text: str) -> str:
    """Returns a text with escapes in place of what a terminal would act on."""
    return UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)


def storable(text: str, limit: int) -> str:
    """Returns a text as a record can hold it: with marks for what it cannot.

    Args:
      text: Anything, such as what a library wrote to its log.
      limit: The most characters; the last ones stay.
    """
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)[-limit:]
