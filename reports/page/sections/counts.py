"""Rates and fractions of measured windows, and what was counted of one step."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

from reports.page import page
from reports.words import formats, names
from results.records import measuring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

    from reports.view.view import View
    from results.records.models import MetricFacts, QualityMetric
    from results.study.cases import Case

TITLE = "Counted in the window"
SLUG = "counts"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseCounts:
    """One figure of one case: a value per trial."""

    case: Case  # The case.
    values: tuple[float, ...]  # Of each ok trial that has the figure.
    unit: str  # Of the values.
    trial_ids: tuple[str, ...]  # The trials.
    # Whether it is a count, which is written with all its digits.
    is_exact: bool = False

    def text(self, value: float) -> str:
        """Writes one of its values, or their mean."""
        if self.is_exact and value.is_integer():
            return formats.whole(int(value))
        return formats.without_unit(value, self.unit)

    @property
    def mean(self) -> float:
        """Arithmetic mean over trials."""
        return statistics.fmean(self.values)


def collect(view: View) -> dict[str, tuple[CaseCounts, ...]]:
    """Returns the counts of every measured case, by name."""
    found: dict[str, list[CaseCounts]] = {}
    for case in view.measured_cases:
        by_name: dict[str, list[tuple[str, QualityMetric]]] = {}
        for entry in case.ok_entries:
            for metric in entry.result.window_metrics:
                by_name.setdefault(metric.name, []).append((entry.trial_id, metric))
        for name, trials in by_name.items():
            found.setdefault(name, []).append(
                CaseCounts(
                    case=case,
                    values=tuple(metric.value for _, metric in trials),
                    unit=trials[0][1].unit,
                    trial_ids=tuple(trial_id for trial_id, _ in trials),
                    is_exact=trials[0][1].method == measuring.EXACT,
                )
            )
    return {name: tuple(cases) for name, cases in found.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CountRow:
    """One figure of all cases."""

    name: str  # Of the figure, in words.
    unit: str  # Of its values; empty for shares, which are percentages.
    cells: dict[str, CaseCounts]  # By case id; cases without the figure are missing.


def tabulate(
    counts: dict[str, tuple[CaseCounts, ...]], metrics: Mapping[str, MetricFacts]
) -> list[CountRow]:
    """Returns a row per figure."""
    return [
        CountRow(
            name=names.metric(name, metrics),
            unit="" if cases[0].unit in formats.RATIO_UNITS else cases[0].unit,
            cells={found.case.case_id: found for found in cases},
        )
        for name, cases in counts.items()
    ]


def render(view: View) -> Markup:
    """Renders one table: a row per figure, a column per case."""
    counts = collect(view)
    if not counts:
        return page.NOTHING
    columns = {
        found.case.case_id: found for cases in counts.values() for found in cases
    }
    return page.render(
        "counts",
        view=view,
        rows=tabulate(counts, view.study.metrics),
        columns=list(columns.values()),
    )
