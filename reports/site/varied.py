"""The page of a varied study: for each value, what was learned and how fast.

Each value has a study of its own, measured after the one before it. So ratios with
intervals stand within a study, and none between values.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reports.charts import over_replicas, style
from reports.charts.rows import known
from reports.page import page
from reports.view import series_of
from reports.words import formats
from results import errors
from results.figures import frame as frame_lib
from results.store import studies as studies_lib
from results.study.cases import load_study

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from results.study.cases import Study

MOST_PANELS: Final = 12
_KEYS: Final = [
    *("backend", "num_replicas", "global_batch_size"),
    *("quantity", "protocol"),
]


class ValueRow(NamedTuple):
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
    def median_text(self) -> str:
        """The median with its unit."""
        return formats.quality(self.median, self.unit)

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """The cells of its row, after the value: class of their column, and text."""
        return (
            ("", self.backend),
            ("n", str(self.num_replicas)),
            ("n", formats.whole(self.global_batch_size)),
            ("", self.what),
            ("n", self.median_text),
            ("i", formats.interval(self.low, self.high, formats.significant)),
            ("n", str(self.n)),
            *([("", self.spent)] if self.spent else []),
        )


def build(root: pathlib.Path) -> str:
    """Returns the page as HTML; the same records give the same bytes."""
    found = studies_lib.read(root)
    if found is None:
        raise errors.ResultsError(f"{str(root)!r} is no parameter sweep")
    facts = []
    links = []
    quality: list[ValueRow] = []
    speed: list[ValueRow] = []
    values = []
    for store in studies_lib.stores(root, found):
        study, name = load_study(store.public), store.root.name
        if study.problems:
            first = study.problems[0]
            raise errors.ResultsError(
                f"study {name!r} has a damaged record, {str(first.path)!r}:"
                f" {first.reason}; see 'status {store.root}'"
            )
        value = studies_lib.value_of(study.plan, found.key)
        values.append(value)
        links.append((f"{found.key} {value}", f"../{name}/report/index.html"))
        frame = frame_lib.points_frame(study)
        quality += _quality(study, frame, value, name)
        speed += _speed(frame, value, name)
        if bad := sum(not entry.is_ok for entry in study.entries):
            facts.append(f"{value}: {formats.count(bad, 'trial')} not ok")
    if missing := len(found.studies) - len(values):
        facts.insert(0, f"{missing} not begun")
    facts.insert(0, formats.count(len(values), "study", "studies"))
    tables = [
        ("quality", "Quality at the end of training", "worst and best run", quality),
        ("speed", "Throughput", "95 % interval", speed),
    ]
    panels = [
        panel
        for slug, _, _, rows in tables
        for panel in _panels(rows, values, slug, found.key)
    ]
    html = page.render(
        "varied",
        title=f"{root.name}: {found.key} varied",
        site_style=page.asset("site.css", "site"),
        links=links,
        key=found.key,
        facts="; ".join(facts),
        tables=tables,
        panels=panels[:MOST_PANELS],
    )
    return f"{html}\n"


def _quality(
    study: Study, frame: pd.DataFrame, value: str, name: str
) -> Iterator[ValueRow]:
    """Yields the last evaluation of the runs of each case, for each metric."""
    learning = frame[frame["figure"] == "learning"]
    for _, of_case in learning.groupby(_KEYS, sort=False, dropna=False):
        backend, size, batch, metric, protocol = of_case.iloc[0][_KEYS]
        last = of_case.loc[of_case.groupby("trial_id")["num_steps"].idxmax()]
        ends = [float(end) for end in last["value"]]
        spent = int(statistics.median(last["num_examples"]))
        yield ValueRow(
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


def _speed(frame: pd.DataFrame, value: str, name: str) -> Iterator[ValueRow]:
    chosen = frame[
        frame["figure"].eq("scaling")
        & frame["quantity"].eq("throughput")
        & frame["kind"].eq("estimate")
    ]
    row: Any
    for row in chosen.itertuples():
        yield ValueRow(
            value=value,
            study=name,
            backend=row.backend,
            num_replicas=int(row.num_replicas),
            global_batch_size=int(row.global_batch_size),
            what=row.mode,
            median=row.value,
            low=known(row.low),
            high=known(row.high),
            n=int(row.n),
            unit=row.unit,
        )


def _panels(
    rows: Sequence[ValueRow], values: Sequence[str], slug: str, key: str
) -> Iterator[dict[str, str]]:
    """Draws each metric over the values, in the order in which they were given."""
    if len(values) < 2:  # noqa: PLR2004 (a point is no line)
        return
    by_metric = formats.grouped((row.what, row) for row in rows)
    for number, (what, own) in enumerate(by_metric.items()):
        title = f"{what}, {own[0].unit}" if own[0].unit else what
        described = (
            f"{row.value}, {row.backend} x{row.num_replicas}: {row.median_text}"
            for row in own
        )
        drawing = over_replicas.draw_over_time(
            _lines(own, values),
            dates=list(values),
            slug=f"{slug}-{number}",
            title=f"{title} for each value",
            description="; ".join(described),
            label=key,
        )
        yield {"title": title, "drawing": drawing}


def _lines(rows: Sequence[ValueRow], values: Sequence[str]) -> list[over_replicas.Line]:
    cases = formats.grouped(((row.backend, row.num_replicas), row) for row in rows)
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
                    tip=f"{row.value}, {backend} x{size}: {row.median_text},"
                    f" n = {row.n}",
                )
                for row in own
            ),
        )
        for place, ((backend, size), own) in enumerate(cases.items())
    ]
