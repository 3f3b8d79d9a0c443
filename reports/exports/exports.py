"""A study in other formats: Markdown, JSON, CSV."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from reports.view.view import view_store
from reports.words import brief, cells, formats, marks, next_step, trust, verdict
from reports.words.marks import Level
from reports.words.verdict import lead_point
from results.figures import frame, scaling
from results.figures.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from reports.view.view import View
    from results.figures.scaling import Point
    from results.judging.gate_metrics import Metric
    from results.statistics.estimates import Estimate
    from results.store.study_store import Store

REPORT_VERSION: Final = 1
MOST_LINES: Final = 40
"""Of the Markdown: what a reviewer sees without scrolling past it."""
_MOST_ROWS: Final = 18
_MOST_LIMITS: Final = 6

NO_VERDICT: Final = "no verdict"


def as_json(store: Store) -> str:
    """Returns the figures of a study and its verdict; see docs/schema."""
    view = view_store(store)
    data = {
        "report_version": REPORT_VERSION,
        "verdict": verdict_data(view),
        **summarize(view.study),
    }
    return json.dumps(data, indent=2)


def verdict_data(view: View) -> dict[str, Any]:
    """Returns the verdict on a study as plain data."""
    judged, shown = verdict.judge(view), brief.judge(view)
    return {
        "headline": shown.text,
        "level": shown.level.value,
        "next_step": shown.next_step,
        "marks": [
            {"name": mark.name, "level": mark.level.value, "reason": mark.reason}
            for mark in marks.of_view(view)
        ],
        "findings": [dataclasses.asdict(finding) for finding in judged.findings],
        "limits": list(judged.unknowns),
    }


def csv_of_studies(stores: Sequence[Store], _metric: Metric | None = None) -> str:
    """Returns the tidy frame of one or more studies, its first column their names.

    All metrics are in it.
    """
    return cells.as_csv(_frame(stores)).rstrip("\n")


def _frame(stores: Sequence[Store]) -> pd.DataFrame:
    import pandas as pd

    parts = []
    for store in stores:
        part = frame.points_frame(store)
        part.insert(0, "study", store.read_plan().study)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def as_markdown(store: Store) -> str:
    """Returns the report of a study for a pull request, in at most ``MOST_LINES``."""
    view = view_store(store)
    judged = verdict.judge(view)
    measured = [point for point in view.points if point.throughput is not None]
    lines = [
        f"### {formats.escaped(view.study.plan.study)}",
        "",
        f"`{headline(view)}`",
        "",
        f"**{formats.escaped(brief.judge(view).text)}**",
        "",
    ]
    if measured:
        columns = ("backend", "mode", "N", view.rate_unit, "speedup", "efficiency", "n")
        rows = [_row(point) for point in _most_useful(measured)]
        lines += formats.markdown_table(columns, rows)
        num_more = len(measured) - len(rows)
        if num_more:
            lines.append("")
            more = formats.count(num_more, "more case")
            lines.append(f"{more}: `{next_step.export(view.study.plan, 'csv')}`.")
        lines.append("")
    limits = [f"- {formats.escaped(text)}" for text in judged.unknowns]
    lines += limits[:_MOST_LIMITS]
    if len(limits) > _MOST_LIMITS:
        lines.append(
            f"- {formats.count(len(limits) - _MOST_LIMITS, 'more limit')} in the report"
        )
    assert len(lines) <= MOST_LINES
    return "\n".join(lines).rstrip()


def _most_useful(points: Sequence[Point]) -> list[Point]:
    """Returns the points of a short table: the most replicas of every curve first."""
    if len(points) <= _MOST_ROWS:
        return list(points)
    by_size = sorted(points, key=lambda point: -point.num_replicas)
    kept = {id(point) for point in by_size[:_MOST_ROWS]}
    return [point for point in points if id(point) in kept]


def _row(point: Point) -> tuple[str, ...]:
    mark = " (oversubscribed)" if point.is_oversubscribed else ""
    figures = scaling.ratios(point)
    speedup = figures["speedup"].estimate
    baseline = "baseline" if point.is_baseline else formats.ABSENT
    return (
        point.backend,
        point.mode.value,
        f"{point.num_replicas}{mark}",
        _cell(figures["throughput"].estimate, formats.significant),
        _cell(speedup, formats.times) if speedup else baseline,
        _cell(figures["efficiency"].estimate, formats.percent),
        f"{len(point.trial_ids)}/{len(point.case.entries)}",
    )


def _cell(estimate: Estimate | None, write: Callable[[float], str]) -> str:
    if estimate is None:
        return formats.ABSENT
    return formats.estimate(estimate, write)


def headline(view: View) -> str:
    """Returns the figure of a study, or the verdict of a gate, in one line."""
    gate = brief.of_view(view)
    if gate is not None:
        return f"gate: {gate.verdict}"
    point = None if trust.why_unfit(view) else lead_point(view)
    if point is None or point.efficiency is None:
        return f"scaling: {NO_VERDICT}"
    replicas = formats.count(point.num_replicas, "replica")
    figure = _plain(formats.estimate(point.efficiency, formats.percent))
    unsure = marks.worst(marks.of_view(view)) is Level.BAD
    end = ", not reliable" if unsure else ""
    return f"{point.mode.value} scaling efficiency: {figure} at {replicas}{end}"


def _plain(text: str) -> str:
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")
