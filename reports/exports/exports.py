"""A study in other formats: Markdown, a badge, JSON, CSV, Parquet."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from markupsafe import escape

from reports.view.view import view_store
from reports.words import (
    brief,
    cells,
    formats,
    markdown,
    marks,
    reproduce,
    trust,
    verdict,
)
from reports.words.judging import gate_brief
from reports.words.lead import lead_point
from reports.words.marks import Level
from results import errors
from results.figures import frame, table
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
_GOOD, _BAD, _UNSURE, _NONE = "#1a7f4b", "#b3261e", "#8a5a00", "#58616c"
_DEFAULT_TARGET: Final = 0.8
_CHARACTER, _PADDING, _HEIGHT = 6.6, 7, 20


def as_json(store: Store) -> str:
    """Returns the figures of a study and its verdict; see docs/schema.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
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
        "findings": [
            {
                "label": finding.label,
                "figure": finding.figure,
                "interval": finding.interval,
                "sentence": finding.sentence,
                "trial_ids": list(finding.trial_ids),
            }
            for finding in judged.findings
        ],
        "limits": list(judged.unknowns),
    }


def csv_of_studies(stores: Sequence[Store], _metric: Metric | None = None) -> str:
    """Returns the tidy frame of one or more studies, its first column their names.

    All metrics are in it.

    Raises:
      ResultsError: A plan is missing, unreadable or contradictory.
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


def parquet_of_studies(stores: Sequence[Store], _metric: Metric) -> bytes:
    """Returns the frame of ``csv_of_studies`` as a Parquet file, with its types.

    Raises:
      ResultsError: A plan is missing, unreadable or contradictory, or pyarrow is not
        installed.
    """
    stream = io.BytesIO()
    try:
        _frame(stores).to_parquet(stream, engine="pyarrow", index=False)
    except ImportError as error:
        raise errors.ResultsError(
            f"--format parquet needs pyarrow ({error}); install it with 'pip install"
            " pyarrow', or use --format csv"
        ) from error
    return stream.getvalue()


def as_markdown(store: Store) -> str:
    """Returns the report of a study for a pull request, in at most ``MOST_LINES``.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    view = view_store(store)
    judged = verdict.judge(view)
    left, right, _ = badge_parts(view)
    measured = [point for point in view.points if point.throughput is not None]
    lines = [
        f"### {markdown.escaped(view.study.plan.study)}",
        "",
        f"`{left}: {right}`",
        "",
        f"**{markdown.escaped(brief.judge(view).text)}**",
        "",
    ]
    if measured:
        columns = ("backend", "mode", "N", view.rate_unit, "speedup", "efficiency", "n")
        rows = [_row(point) for point in _most_useful(measured)]
        lines += markdown.table(columns, rows)
        num_more = len(measured) - len(rows)
        if num_more:
            lines.append("")
            more = formats.count(num_more, "more case")
            lines.append(f"{more}: `{reproduce.export(view.study.plan, 'csv')}`.")
        lines.append("")
    limits = [f"- {markdown.escaped(text)}" for text in judged.unknowns]
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
    figures = table.ratios(point)
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


def badge_parts(view: View) -> tuple[str, str, str]:
    """Returns both texts of a badge, and the colour of the second.

    Green says that the whole interval meets the efficiency target of the study (80 % by
    default), red that it is below, amber that this is inconclusive or not reliable.
    """
    gate = gate_brief.of_view(view)
    if gate is not None:
        colors = {Level.OK: _GOOD, Level.BAD: _BAD, Level.CAUTION: _UNSURE}
        return "gate", gate.verdict, colors[gate.level]
    point = None if trust.why_unfit(view) else lead_point(view)
    if point is None or point.efficiency is None:
        return "scaling", NO_VERDICT, _NONE
    efficiency = point.efficiency
    target = view.study.plan.measuring.efficiency_target or _DEFAULT_TARGET
    color = _UNSURE
    if efficiency.excludes(target):
        color = _GOOD if efficiency.value > target else _BAD
    replicas = formats.count(point.num_replicas, "replica")
    right = f"{_plain(formats.estimate(efficiency, formats.percent))} at {replicas}"
    if marks.worst(marks.of_view(view)) is Level.BAD:
        right, color = f"{right}, not reliable", _UNSURE
    return f"{point.mode.value} scaling efficiency", right, color


def _plain(text: str) -> str:
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


def as_badge(store: Store) -> str:
    """Returns a badge as an SVG file that loads nothing.

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    view = view_store(store)
    left, right, color = badge_parts(view)
    first, second = (
        round(_CHARACTER * len(text)) + 2 * _PADDING for text in (left, right)
    )
    label = escape(f"{left}: {right}")
    width = first + second
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'role="img" aria-label="{label}"><title>{label}</title>'
        f'<rect width="{width}" height="{_HEIGHT}" rx="3" fill="#3a4048"/>'
        f'<path d="M{first} 0h{second - 3}a3 3 0 0 1 3 3v{_HEIGHT - 6}a3 3 0 0 1-3 3'
        f'h-{second - 3}z" fill="{color}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">'
        f"{_centred(first / 2, first, left)}"
        f"{_centred(first + second / 2, second, right)}"
        "</g></svg>"
    )


def _centred(x: float, width: int, text: str) -> str:
    return (
        f'<text x="{x:g}" y="14" textLength="{width - 2 * _PADDING}">{escape(text)}'
        "</text>"
    )
