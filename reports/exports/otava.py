"""The history of studies for Apache Otava: a CSV file per series, and its settings.

Otava reads one test from one file without gaps, so each case on each machine class has
a file of its own: figures of unlike machines are never in one series.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

import yaml

from reports.site.card import slugs
from reports.words import cells
from results.errors import ResultsError
from results.figures.history import history
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures.history import Series
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store

SETTINGS: Final = "otava.yaml"
COLUMNS: Final = ("time", "commit", "study", "throughput", "low", "high")
_SHORT: Final = 8


def export(stores: Sequence[Store], _metric: Metric) -> dict[str, bytes]:
    """Returns the files by name; paths in the settings are relative to their folder.

    Raises:
      ResultsError: A study cannot be read, or no case has a figure.
    """
    found = history(load_study(store) for store in stores)
    if not found.series:
        raise ResultsError(
            "no case of these studies has a figure, so there is no series for Otava;"
            " see 'status' of each"
        )
    names = slugs([_name(series) for series in found.series])
    files = {
        f"{name}.csv": _rows(series)
        for name, series in zip(names, found.series, strict=True)
    }
    tests = {
        name: {
            "type": "csv",
            "file": f"{name}.csv",
            "time_column": COLUMNS[0],
            "attributes": ["commit", "study"],
            "metrics": {"throughput": {"column": "throughput", "direction": 1}},
        }
        for name in names
    }
    settings: str = yaml.safe_dump({"tests": tests}, sort_keys=False)
    return {SETTINGS: settings.encode(), **files}


def _name(series: Series) -> str:
    return (
        f"{series.workload} {series.preset} {series.case} {series.case_key[:_SHORT]}"
        f" {series.machine[:_SHORT]}"
    )


def _rows(series: Series) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for seen in series.observations:
        figure = seen.throughput
        numbers = (figure.value, figure.low, figure.high)
        facts = map(cells.inert, (seen.date, seen.commit, seen.study))
        writer.writerow([*facts, *numbers])
    return stream.getvalue().encode()
