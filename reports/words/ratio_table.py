"""A comparison as text, Markdown or JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from reports.words import formats, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reports.view.view import View
    from results.judging.quality_gate import RatioTable, Row
    from results.records.models import MetricFacts, QualityMetric, QualityPoint
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry


Axis = tuple[str, str, int]

MOST_FIGURES = 20
"""Limit per section; nobody reads a page with figures of more metrics than that."""


def axis_of(metric: QualityMetric) -> Axis:
    """Returns name, protocol and, where the protocol matters, n.

    A proportion has no protocol and its expected value does not depend on n; a score
    such as FID depends on n.
    """
    return metric.name, metric.protocol, metric.num_examples if metric.protocol else 0


def titles(axes: Iterable[Axis], metrics: Mapping[str, MetricFacts]) -> dict[Axis, str]:
    """Returns a title per axis, numbered where one metric has several."""
    distinct = list(dict.fromkeys(axes))
    found = {}
    for axis in distinct:
        same = [other for other in distinct if other[0] == axis[0]]
        found[axis] = names.metric(axis[0], metrics)
        if len(same) > 1:
            found[axis] += f" (protocol {same.index(axis) + 1} of {len(same)})"
    return found


def explain(axis: Axis, all_axes: Iterable[Axis]) -> str:
    """Says how a figure was computed, and why others of its name have another axis."""
    if not axis[1]:
        return ""
    sentences = [f"Computed with: {axis[1]}; n = {axis[2]}."]
    for other in dict.fromkeys(all_axes):
        if other[0] == axis[0] and other != axis:
            ours, theirs = _parts(axis), _parts(other)
            first = "; ".join(part for part in ours if part not in theirs)
            second = "; ".join(part for part in theirs if part not in ours)
            sentences.append(
                "Not comparable with another figure of this name: here "
                f"{first or 'nothing more'}, there {second or 'nothing more'}."
            )
    return " ".join(sentences)


def _parts(axis: Axis) -> list[str]:
    return [*axis[1].split("; "), f"n = {axis[2]}"] if axis[1] else ["no protocol"]


WEAKER: Final = (
    "a weaker comparison: the two were not measured in the same rounds, so nothing that"
    " happened to the machine cancels, and what varies between days is in no interval"
)
ADVICE: Final = (
    "Advice, no verdict: the effect of the day and of the machine's state was not"
    " measured, and three to seven of ten comparisons of equal programs would differ;"
    " gate --baseline REVISION measures both in the same rounds"
)


def comparison_notes(comparison: RatioTable) -> list[str]:
    """Returns what a reader of the ratios has to know, one line each."""
    notes = [WEAKER, ADVICE]
    if comparison.differences:
        listed = "; ".join(comparison.differences)
        notes.append(f"not comparable, shown only: {listed}")
    notes += [f"setting compared: {setting}" for setting in comparison.settings]
    if comparison.without_test:
        names = "; ".join(row.name for row in comparison.without_test)
        notes.append(f"one run, which tests nothing: {names}")
    notes.append(
        f"ratios of {comparison.metric.name}, {comparison.first} /"
        f" {comparison.second}, each with its own 95 % interval"
    )
    return notes


def _comparison_row(row: Row) -> tuple[str, ...]:
    ratio = row.ratio
    interval = "-"
    if ratio.low is not None and ratio.high is not None:
        interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
    p_value = "-" if row.p_value is None else formats.p_value(row.p_value)
    return row.name, f"{ratio.value:.3f}", interval, str(ratio.n), p_value, "advice"


_COMPARISON_COLUMNS = ("case", "ratio", "95% interval", "n", "p (Holm)", "")


def comparison_text(comparison: RatioTable) -> str:
    """Writes a comparison for a terminal."""
    rows = [*map(_comparison_row, comparison.rows)]
    lines = [*aligned(_COMPARISON_COLUMNS, rows), *comparison_notes(comparison)]
    return "\n".join(lines)


def comparison_markdown(comparison: RatioTable) -> str:
    """Writes a comparison for a document."""
    rows = [*map(_comparison_row, comparison.rows)]
    notes = [f"- {formats.escaped(note)}" for note in comparison_notes(comparison)]
    return "\n".join([*formats.markdown_table(_COMPARISON_COLUMNS, rows), "", *notes])


def comparison_json(comparison: RatioTable) -> str:
    """Writes a comparison as data."""
    return json.dumps(
        {
            "first": comparison.first,
            "second": comparison.second,
            "metric": comparison.metric.name,
            "is_weaker": True,
            "differences": list(comparison.differences),
            "settings": list(comparison.settings),
            "rows": [
                {
                    "case": row.name,
                    "ratio": estimate_data(row.ratio),
                    "p_value": row.p_value,
                    "differs": False,  # advice
                }
                for row in comparison.rows
            ],
        },
        indent=2,
    )


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """Returns an estimate as data."""
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.n,
        "confidence": estimate.confidence,
        "method": estimate.method,
    }


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns columns with spaces."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in (columns, *rows)
    ]


FEWEST_SEEDS: Final = 2
"""Runs of a case that are told apart, and aggregated."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One metric of one quality run."""

    case: Case  # The case.
    entry: Entry  # The trial.
    # Each evaluation with the metric.
    points: tuple[tuple[QualityPoint, QualityMetric], ...]


def collect_quality_runs(view: View) -> dict[str, tuple[Run, ...]]:
    """Returns the quality runs that are ok, by title of the axis; see ``quality``."""
    found: dict[Axis, list[Run]] = {}
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            by_axis: dict[Axis, list[tuple[QualityPoint, QualityMetric]]] = {}
            for point in entry.result.curve:
                for metric in point.quality:
                    by_axis.setdefault(axis_of(metric), []).append((point, metric))
            for axis, points in by_axis.items():
                run = Run(case=case, entry=entry, points=tuple(points))
                found.setdefault(axis, []).append(run)
    names = titles(found, view.study.metrics)
    return {names[axis]: tuple(runs) for axis, runs in found.items()}


def name_run(case: Case, entry: Entry) -> str:
    """Names a quality run by its case, and by its repetition if there are several."""
    if len(case.entries) < FEWEST_SEEDS:
        return case.label
    return f"{case.label}, repetition {entry.spec.repetition_index}"
