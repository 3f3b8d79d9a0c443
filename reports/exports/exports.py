"""A study in other formats: Markdown, JSON, CSV."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from reports.view import view_store
from reports.words import brief, cells, formats, marks, next_step, trust, verdict
from reports.words.marks import Level
from results.figures import frame
from results.figures.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view import View
    from results.figures.scaling import Point
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store

REPORT_VERSION: Final = 1
MOST_LINES: Final = 40
"""Of the Markdown: what a reviewer sees without scrolling past it."""
_MOST_ROWS: Final = 18
_MOST_LIMITS: Final = 6


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
    shown = brief.judge(view)
    return {
        "headline": shown.text,
        "level": shown.level.value,
        "next_step": shown.next_step,
        "marks": [
            {"name": mark.name, "level": mark.level.value, "reason": mark.reason}
            for mark in marks.of_view(view)
        ],
        "findings": [dataclasses.asdict(of) for of in verdict.findings(view)],
        "limits": list(verdict.limits(view)),
    }


def csv_of_studies(stores: Sequence[Store], _metric: Metric | None = None) -> str:
    """Returns the tidy frame of one or more studies, its first column their names.

    All metrics are in it.
    """
    import pandas as pd

    parts = []
    for store in stores:
        part = frame.points_frame(store)
        part.insert(0, "study", store.read_plan().study)
        parts.append(part)
    return cells.as_csv(pd.concat(parts, ignore_index=True)).rstrip("\n")


def as_markdown(store: Store) -> str:
    """Returns the report of a study for a pull request, in at most ``MOST_LINES``."""
    view = view_store(store)
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
    limits = [f"- {formats.escaped(text)}" for text in verdict.limits(view)]
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
    cells = verdict.cells(point)
    del cells["of best"]
    cells["N"] += " (oversubscribed)" * point.is_oversubscribed
    return tuple(cells.values())


def headline(view: View) -> str:
    """Returns the figure of a study, or the verdict of a gate, in one line."""
    gate = brief.of_view(view)
    if gate is not None:
        return f"gate: {gate.verdict}"
    modes = () if trust.why_unfit(view) else view.study.modes
    curves = [curve for mode in modes if (curve := verdict.lead_curve(view, mode))]
    # The largest case of the first scaling mode that has an efficiency.
    point = curves[0][-1] if curves else None
    if point is None or point.efficiency is None:
        return "scaling: no verdict"
    replicas = formats.count(point.num_replicas, "replica")
    figure = formats.estimate(point.efficiency, formats.percent)
    plain = figure.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")
    is_bad = marks.worst(marks.of_view(view)) is Level.BAD
    end = ", not reliable" * is_bad
    return f"{point.mode.value} scaling efficiency: {plain} at {replicas}{end}"
