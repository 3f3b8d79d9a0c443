"""Quality after the few timed steps, with the number of held-out examples."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

from reports.charts import rows
from reports.page import page
from reports.words import axes, formats

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View
    from results.records.models import QualityMetric
    from results.study.cases import Case, Entry

TITLE = "Quality"
SLUG = "quality"
MOST_TRIALS = 300
"""Of more trials, the table has a row per case in place of a row per trial."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseQuality:
    """One metric of one case: a figure and an interval per trial."""

    case: Case  # The case.
    # Each ok trial that has the metric, with it.
    trials: tuple[tuple[Entry, QualityMetric], ...]

    @property
    def mean(self) -> float:
        """Arithmetic mean over trials."""
        return statistics.fmean(metric.value for _, metric in self.trials)

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Trials behind the mean."""
        return tuple(entry.trial_id for entry, _ in self.trials)


def collect(view: View) -> dict[str, tuple[CaseQuality, ...]]:
    """Returns the quality of every measured case, by title of the axis.

    The title is the name of the metric, unless figures of that name have
    several protocols: each then has its own axis.
    """
    names = axes.titles(
        (
            axes.axis_of(metric)
            for case in view.measured_cases
            for entry in case.ok_entries
            for metric in entry.result.quality
        ),
        view.study.metrics,
    )
    found: dict[str, tuple[CaseQuality, ...]] = {}
    for axis, title in names.items():
        cases = (
            CaseQuality(
                case=case,
                trials=tuple(
                    (entry, metric)
                    for entry in case.ok_entries
                    for metric in entry.result.quality
                    if axes.axis_of(metric) == axis
                ),
            )
            for case in view.measured_cases
        )
        found[title] = tuple(quality for quality in cases if quality.trials)
    return found


def _tip(quality: CaseQuality, unit: str) -> str:
    """Says that the line spans the intervals of single trials: it is no interval."""
    low = min(metric.low for _, metric in quality.trials)
    high = max(metric.high for _, metric in quality.trials)
    return (
        f"{rows.of_case(quality.case).name}: "
        f"{formats.quality(quality.mean, unit)}, mean of trials; their 95 % intervals "
        f"span {formats.quality(low, unit)} to {formats.quality(high, unit)}, "
        f"n = {len(quality.trials)}"
    )


def _draw(view: View, name: str, cases: tuple[CaseQuality, ...]) -> Markup:
    unit = cases[0].trials[0][1].unit
    drawn = [
        rows.of_case(
            quality.case,
            value=quality.mean,
            low=min(metric.low for _, metric in quality.trials),
            high=max(metric.high for _, metric in quality.trials),
            dots=tuple(metric.value for _, metric in quality.trials),
            text=formats.quality(quality.mean, unit),
            tip=_tip(quality, unit),
        )
        for quality in cases
    ]
    return rows.draw_estimates(
        rows.most_replicas(drawn),
        rows.Scale(label=name, is_percent=unit in formats.RATIO_UNITS),
        slug=f"quality-{list(collect(view)).index(name)}",
        title=f"{name} per case",
    )


def render(view: View) -> Markup:
    """Renders one figure per metric, with each trial's own interval below."""
    everything = collect(view)
    if not everything:
        return page.NOTHING
    found = dict(list(everything.items())[: axes.MOST_FIGURES])
    all_axes = [axes.axis_of(cases[0].trials[0][1]) for cases in found.values()]
    figures = [
        (name, _draw(view, name, cases), cases, axes.explain(axis, all_axes))
        for axis, (name, cases) in zip(all_axes, found.items(), strict=True)
    ]
    steps = sorted(
        {
            entry.spec.num_warmup_steps + entry.result.num_measured_steps
            for cases in found.values()
            for quality in cases
            for entry, _ in quality.trials
        }
    )
    return page.render(
        "quality",
        view=view,
        figures=figures,
        num_left_out=len(everything) - len(found),
        steps=steps,
        most_rows=rows.MOST_ROWS,
        most_trials=MOST_TRIALS,
    )
