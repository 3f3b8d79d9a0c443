"""Quality runs that are ok, by the axis on which they can be compared."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from reports.words import axes

if TYPE_CHECKING:
    from reports.view.view import View
    from results.records.models import QualityMetric, QualityPoint
    from results.study.cases import Case, Entry

FEWEST_SEEDS: Final = 2
"""Runs of a case that are told apart, and aggregated."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One metric of one quality run."""

    case: Case  # The case.
    entry: Entry  # The trial.
    # Each evaluation with the metric.
    points: tuple[tuple[QualityPoint, QualityMetric], ...]


def collect(view: View) -> dict[str, tuple[Run, ...]]:
    """Returns the quality runs that are ok, by title of the axis; see ``quality``."""
    found: dict[axes.Axis, list[Run]] = {}
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            by_axis: dict[axes.Axis, list[tuple[QualityPoint, QualityMetric]]] = {}
            for point in entry.result.curve:
                for metric in point.quality:
                    by_axis.setdefault(axes.axis_of(metric), []).append((point, metric))
            for axis, points in by_axis.items():
                run = Run(case=case, entry=entry, points=tuple(points))
                found.setdefault(axis, []).append(run)
    names = axes.titles(found, view.study.metrics)
    return {names[axis]: tuple(runs) for axis, runs in found.items()}


def name_run(case: Case, entry: Entry) -> str:
    """Names a quality run by its case, and by its repetition if there are several."""
    if len(case.entries) < FEWEST_SEEDS:
        return case.label
    return f"{case.label}, repetition {entry.spec.repetition_index}"
