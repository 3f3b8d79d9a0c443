"""Home folders are recorded as ``~``: a record must not say whose machine it was."""

from __future__ import annotations

import re
from pathlib import Path

# Not within a longer path or name; in JSON an escape such as \n can stand before it.
_START = r"(?:(?<![\w.~/-])|(?<=\\[nrt]))"
_USUAL = re.compile(
    _START + r"(?:/(?:home|Users)/[^/\s:;,\"'\\<>|]+|/root(?=/))",
)


def shortened(text: str) -> str:
    """Returns a string with ``~`` in place of home folders, whoever's they are."""
    own = _own_folder()
    if own:
        # Not where the folder's name continues.
        text = re.sub(rf"{_START}{re.escape(own)}(?![\w.-])", "~", text)
    return _USUAL.sub("~", text)


def _own_folder() -> str:
    """Returns this user's home folder; empty if it is the root of all files."""
    try:
        folder = str(Path.home())
    except RuntimeError:  # this user has none
        return ""
    return "" if folder in ("/", ".") else folder
