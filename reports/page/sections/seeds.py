"""Aggregates runs with several seeds; part of the section Learning."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from reports.charts import learning, style
from reports.words import formats
from reports.words.ratio_table import FEWEST_SEEDS
from results.statistics import run_scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from reports.words.ratio_table import Run
    from results.records.models import MetricFacts
    from results.statistics.estimates import Estimate
    from results.study.cases import Case

_NUM_THRESHOLDS = 101


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CaseScore:
    """The results of all runs of one case."""

    case: Case  # The case.
    # Final quality of each run, infinitely bad if it failed.
    reached: tuple[float, ...]
    score: Estimate  # Aggregate of all runs.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """One metric of all cases with several runs."""

    cases: tuple[CaseScore, ...]  # The cases.
    panels: tuple[Markup, ...]  # Their performance profiles, at most seven lines each.


def collect(
    runs: Sequence[Run], metrics: Mapping[str, MetricFacts]
) -> tuple[CaseScore, ...]:
    """Returns the score of every case with several runs, those that failed included.

    Strata are data sets; a study has one, so its runs differ in their seed only. Of a
    metric of unknown direction nobody knows what is worst: cases with a run that failed
    have no score.
    """
    facts = metrics.get(runs[0].points[-1][1].name)
    is_higher_better = None if facts is None else facts.is_higher_better
    by_case: dict[str, list[Run]] = {}
    for run in runs:
        by_case.setdefault(run.case.case_id, []).append(run)
    found = []
    for group in by_case.values():
        case = group[0].case
        num_failed = len(case.failed_entries)
        if len(group) + num_failed < FEWEST_SEEDS:
            continue
        if num_failed and is_higher_better is None:
            continue
        worst = -math.inf if is_higher_better else math.inf
        reached = tuple(run.points[-1][1].value for run in group)
        reached += (worst,) * num_failed
        found.append(
            CaseScore(
                case=case,
                reached=reached,
                score=run_scores.score({case.spec.data: reached}),
            )
        )
    return tuple(found)


def draw(
    number: int, name: str, runs: Sequence[Run], metrics: Mapping[str, MetricFacts]
) -> Together | None:
    """Returns table and profiles of one metric, or None without repetitions."""
    cases = collect(runs, metrics)
    if not cases:
        return None
    unit = runs[0].points[-1][1].unit
    values = [v for found in cases for v in found.reached if math.isfinite(v)]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0
    levels = np.linspace(low - margin, high + margin, _NUM_THRESHOLDS).tolist()
    panels = []
    drawn = style.panels(cases, lambda found: found.case.spec.backend)
    for index, (_, chosen) in enumerate(drawn):
        profiles = [
            (
                found.case.label,
                found.case.spec.backend,
                run_scores.profile({found.case.spec.data: found.reached}, levels),
            )
            for found in chosen
        ]
        panel = learning.draw_profiles(
            profiles,
            slug=f"learning-{number}-profile{f'-{index}' if index else ''}",
            title=f"Fraction of runs that reached a level of {name}",
            description="; ".join(
                f"{found.case.label}: {run_scores.statistic_of(found.score.n)} "
                f"{formats.quality(found.score.value, unit)} of {found.score.n} runs"
                for found in chosen
            )
            + ".",
            x_label=f"{name} at the end",
            write=lambda value: formats.quality(value, unit),
        )
        panels.append(panel)
    return Together(cases=cases, panels=tuple(panels))
