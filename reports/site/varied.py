"""The page of a varied study: for each value, what was learned and how fast.

Each value has a study of its own, measured after the one before it. So ratios with
intervals stand within a study, and none between values.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Final

from reports.charts import over_replicas, style
from reports.page import page
from reports.view.view import series_of
from reports.words import formats
from results import errors
from results.figures import frame as frame_lib
from results.store import studies as studies_lib
from results.study.cases import load_study

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from markupsafe import Markup

    from results.store.study_store import Store
    from results.study.cases import Study

MOST_PANELS: Final = 12
_CASE = ["backend", "num_replicas", "global_batch_size"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ValueRow:
    """One case of one value."""

    value: str  # Of the setting.
    study: str  # The folder of its study.
    backend: str  # Name of the backend.
    num_replicas: int  # Replicas.
    global_batch_size: int  # Examples of a step.
    what: str  # Quality metric with its protocol, or the scaling mode.
    median: float  # Of the runs or repetitions.
    low: float | None  # Lower end: the worst run, or of the interval; None without one.
    high: float | None  # Upper end.
    n: int  # Runs, or repetitions.
    unit: str  # Of the value.
    spent: str = ""  # What a run had seen at its end, in words; empty for throughput.

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """The cells of its row, after the value: class of their column, and text."""
        return (
            ("", self.backend),
            ("n", str(self.num_replicas)),
            ("n", formats.whole(self.global_batch_size)),
            ("", self.what),
            ("n", formats.quality(self.median, self.unit)),
            ("i", formats.interval_if_any(self.low, self.high, formats.significant)),
            ("n", str(self.n)),
            *([("", self.spent)] if self.spent else []),
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ValuePanel:
    """One metric, or the throughput in one mode, over the values."""

    title: str  # What is drawn.
    drawing: Markup  # The chart.


def build(root: pathlib.Path) -> str:
    """Returns the page as HTML; the same records give the same bytes."""
    found = studies_lib.read(root)
    if found is None:
        raise errors.ResultsError(f"{str(root)!r} is no parameter sweep")
    studies = [_loaded(store, found.key) for store in studies_lib.stores(root, found)]
    quality = [row for name, value, of in studies for row in _quality(of, value, name)]
    speed = [row for name, value, of in studies for row in _speed(of, value, name)]
    values = [value for _, value, _ in studies]
    missing = len(found.studies) - len(studies)
    html = page.render(
        "varied",
        title=f"{root.name}: {found.key} varied",
        site_style=page.asset("site.css", "site"),
        links=[
            (f"{found.key} {value}", f"../{n}/report/index.html")
            for n, value, _ in studies
        ],
        key=found.key,
        facts="; ".join(
            [
                formats.count(len(studies), "study", "studies"),
                *([f"{missing} not begun"] if missing else []),
                *_not_ok(studies),
            ]
        ),
        tables=[
            (
                "quality",
                "Quality at the end of training",
                "worst and best run",
                quality,
            ),
            ("speed", "Throughput", "95 % interval", speed),
        ],
        panels=[
            *_panels(quality, values, "quality", found.key),
            *_panels(speed, values, "speed", found.key),
        ][:MOST_PANELS],
    )
    return f"{html}\n"


def _loaded(store: Store, key: str) -> tuple[str, str, Study]:
    study = load_study(store.public)
    if study.problems:
        first = study.problems[0]
        raise errors.ResultsError(
            f"study {store.root.name!r} has a damaged record, {str(first.path)!r}:"
            f" {first.reason}; see 'status {store.root}'"
        )
    return store.root.name, studies_lib.value_of(study.plan, key), study


def _not_ok(studies: Iterable[tuple[str, str, Study]]) -> list[str]:
    """Returns what is missing from the tables, in words."""
    found = []
    for _, value, study in studies:
        bad = sum(not entry.is_ok for entry in study.entries)
        if bad:
            found.append(f"{value}: {formats.count(bad, 'trial')} not ok")
    return found


def _quality(study: Study, value: str, name: str) -> list[ValueRow]:
    """Returns the last evaluation of the runs of each case, for each metric."""
    frame = frame_lib.points_frame(study)
    learning = frame[frame["figure"] == "learning"]
    rows = []
    keys = [*_CASE, "quantity", "protocol"]
    for _, of_case in learning.groupby(keys, sort=False, dropna=False):
        backend, size, batch, metric, protocol = of_case.iloc[0][keys]
        last = of_case.loc[of_case.groupby("trial_id")["num_steps"].idxmax()]
        ends = [float(end) for end in last["value"]]
        spent = int(statistics.median(last["num_examples"]))
        rows.append(
            ValueRow(
                value=value,
                study=name,
                backend=str(backend),
                num_replicas=int(size),
                global_batch_size=int(batch),
                what=str(metric) + (f" ({protocol})" if protocol else ""),
                median=statistics.median(ends),
                low=min(ends) if len(ends) > 1 else None,
                high=max(ends) if len(ends) > 1 else None,
                n=len(ends),
                unit=str(last["unit"].iloc[0]),
                spent=f"{formats.whole(spent)} {study.example_unit}",
            )
        )
    return rows


def _speed(study: Study, value: str, name: str) -> list[ValueRow]:
    """Returns the throughput of each case."""
    frame = frame_lib.points_frame(study)
    chosen: pd.DataFrame = frame[
        (frame["figure"] == "scaling")
        & (frame["quantity"] == "throughput")
        & (frame["kind"] == "estimate")
    ]
    return [
        ValueRow(
            value=value,
            study=name,
            backend=str(row["backend"]),
            num_replicas=int(row["num_replicas"]),
            global_batch_size=int(row["global_batch_size"]),
            what=str(row["mode"]),
            median=float(row["value"]),
            low=_number(row["low"]),
            high=_number(row["high"]),
            n=int(row["n"]),
            unit=str(row["unit"]),
        )
        for row in chosen.to_dict("records")
    ]


def _number(value: float) -> float | None:
    return None if value != value else float(value)  # noqa: PLR0124 (not a number)


def _panels(
    rows: Sequence[ValueRow], values: Sequence[str], slug: str, key: str
) -> list[ValuePanel]:
    """Draws each metric over the values, in the order in which they were given."""
    if len(values) < 2:  # noqa: PLR2004 (a point is no line)
        return []
    found = []
    for number, what in enumerate(dict.fromkeys(row.what for row in rows)):
        own = [row for row in rows if row.what == what]
        title = f"{what}, {own[0].unit}" if own[0].unit else what
        found.append(
            ValuePanel(
                title=title,
                drawing=over_replicas.draw_over_time(
                    _lines(own, values),
                    dates=list(values),
                    slug=f"{slug}-{number}",
                    title=f"{title} for each value",
                    description="; ".join(
                        f"{row.value}, {row.backend} x{row.num_replicas}:"
                        f" {formats.quality(row.median, row.unit)}"
                        for row in own
                    ),
                    label=key,
                ),
            )
        )
    return found


def _lines(rows: Sequence[ValueRow], values: Sequence[str]) -> list[over_replicas.Line]:
    """Returns a line for each backend and number of replicas."""
    cases = list(dict.fromkeys((row.backend, row.num_replicas) for row in rows))
    return [
        over_replicas.Line(
            series=series_of(backend),
            label=f"{backend} x{size}" if len(cases) > 1 else "",
            width=style.WIDTHS[place % len(style.WIDTHS)],
            dots=tuple(
                over_replicas.Dot(
                    x=values.index(row.value) + 0.06 * (place - (len(cases) - 1) / 2),
                    value=row.median,
                    low=row.low,
                    high=row.high,
                    tip=f"{row.value}, {backend} x{size}:"
                    f" {formats.quality(row.median, row.unit)}, n = {row.n}",
                )
                for row in rows
                if (row.backend, row.num_replicas) == (backend, size)
            ),
        )
        for place, (backend, size) in enumerate(cases)
    ]
