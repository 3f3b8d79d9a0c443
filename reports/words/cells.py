"""Cells of CSV files that no program for tables takes for a formula.

Names of studies and reasons of failures are text that anybody may have written; a cell
that begins with ``=``, ``+``, ``-`` or ``@`` is computed when the file is opened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"\s*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(?:\d[\d.,_]*(?:[eE][+-]?\d+)?|inf|nan)\s?%?")

_QUOTED_OR_END = re.compile(r'("(?:[^"]|"")*")|\r\n')
"""Only with this end of lines does every version of Python quote a carriage return."""


def inert(value: Any) -> Any:
    """Returns a cell with an apostrophe before what would be a formula."""
    if not isinstance(value, str) or not _FORMULA.match(value):
        return value
    return value if _NUMBER.fullmatch(value.strip()) else f"'{value}"


def as_csv(frame: pd.DataFrame) -> str:
    """Returns a frame as CSV, without its index."""
    text: str = frame.map(inert).to_csv(index=False, lineterminator="\r\n")
    return _QUOTED_OR_END.sub(lambda found: found[1] or "\n", text)
