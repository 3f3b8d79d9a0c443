"""CSV files, also in links, whose cells no program for tables takes for a formula.

Names of studies and reasons of failures are text that anybody may have written; a cell
that begins with ``=``, ``+``, ``-`` or ``@`` is computed when the file is opened.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, Final

import pandas as pd

MOST_ROWS: Final = 3_000
"""A figure of more rows downloads its estimates only."""
MOST_STEPS: Final = 600
"""Of more steps, the quartiles of each case are downloaded, which the boxes draw."""
_LEFT_OUT: Final = ("figure", "method")
_SAFE: Final = ",/:;.-_ '()*"
_LEVELS: Final = {
    "shortest": 0.0,
    "lower_quartile": 0.25,
    "median": 0.5,
    "upper_quartile": 0.75,
    "longest": 1.0,
}

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


def of_rows(frame: pd.DataFrame, figure: str) -> str:
    """Returns the rows of a figure as a data URL; empty if there are none."""
    rows = frame[frame["figure"] == figure]
    if len(rows) > MOST_ROWS:
        rows = rows[rows["kind"] != "repetition"].head(MOST_ROWS)
    return url(rows.drop(columns=list(_LEFT_OUT)))


def of_steps(frame: pd.DataFrame) -> str:
    """Returns the steps, or the quartiles of each case and phase, as a data URL."""
    rows = frame[frame["figure"] == "steps"]
    if len(rows) <= MOST_STEPS:
        return of_rows(frame, "steps")
    keys = ["backend", "num_replicas", "per_replica_batch_size", "phase"]
    table = []
    for key, part in rows.groupby(keys, sort=False):
        found = dict(zip(keys, key, strict=True))
        found |= {name: part["value"].quantile(at) for name, at in _LEVELS.items()}
        table.append(found | {"steps": len(part), "unit": "s"})
    return url(pd.DataFrame(table))


def url(frame: pd.DataFrame) -> str:
    """Returns a frame as the data URL of a CSV file, without its empty columns."""
    if frame.empty:
        return ""
    shown = frame.dropna(axis="columns", how="all")
    shown = shown.loc[:, ~(shown == "").all()]
    text = as_csv(shown)
    return f"data:text/csv;charset=utf-8,{urllib.parse.quote(text, safe=_SAFE)}"
