"""The data of a figure as CSV in a link, which works without scripts."""

from __future__ import annotations

import urllib.parse
from typing import Final

import pandas as pd

from reports.words import cells

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
    text = cells.as_csv(shown)
    return f"data:text/csv;charset=utf-8,{urllib.parse.quote(text, safe=_SAFE)}"
