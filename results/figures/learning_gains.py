"""What more replicas change in learning: better results, and less time to a target.

Per metric and backend, runs with more replicas are compared with the fewest; it takes
three seeds of each. A run that failed is worse than any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from results import errors
from results.statistics import run_scores
from results.statistics.run_scores import Time, TimeToTarget

if TYPE_CHECKING:
    from results.records.models import QualityMetric
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry, Study


_SPENT: Final = {"s": "train_time_sec", "examples": "num_examples"}
"""By unit, what a run spends until it reaches a target."""


class Gain(NamedTuple):
    case: Case  # The case.
    # How probably a run is better than with the fewest; None for those themselves.
    better: Estimate | None
    seconds: TimeToTarget  # Training time to the target.
    examples: TimeToTarget  # Examples to the target.


class Gains(NamedTuple):
    metric: str  # Name of the metric.
    backend: str  # Name of the backend.
    target: float  # Quality whose time is stated.
    missed: float  # Probability that a case which is equal seems not to reach it.
    is_higher_better: bool  # Whether that is at least, or at most, the target.
    cases: tuple[Gain, ...]  # One per number of replicas, ascending.


def study_gains(study: Study) -> tuple[Gains, ...]:
    names = dict.fromkeys(
        metric.name for case in study.quality_runs for metric in _metrics(case)
    )
    return tuple(gains for name in names for gains in metric_gains(name, study))


def _metrics(case: Case) -> list[QualityMetric]:
    points = [point for entry in case.ok_entries for point in entry.result.curve]
    return [metric for point in points for metric in point.quality]


def metric_gains(name: str, study: Study) -> tuple[Gains, ...]:
    """Returns what more replicas change, by backend; empty where nothing compares."""
    facts = study.metrics.get(name)
    protocols = {
        (metric.protocol, metric.num_examples if metric.protocol else 0)
        for case in study.quality_runs
        for metric in _metrics(case)
        if metric.name == name
    }
    if facts is None or facts.is_higher_better is None or len(protocols) != 1:
        return ()
    by_backend: dict[str, list[Case]] = {}
    for case in study.quality_runs:
        if case.spec.revision:  # what a gate compares with, not more replicas
            continue
        num_ended = len(case.ok_entries) + len(case.failed_entries)
        is_everywhere = all(
            any(metric.name == name for metric in point.quality)
            for entry in case.ok_entries
            for point in entry.result.curve
        )
        if case.ok_entries and num_ended >= run_scores.FEWEST_RUNS and is_everywhere:
            by_backend.setdefault(case.spec.backend, []).append(case)
    return tuple(
        _backend_gains(name, cases, is_higher_better=facts.is_higher_better)
        for cases in by_backend.values()
    )


def _backend_gains(
    metric: str, cases: Sequence[Case], *, is_higher_better: bool
) -> Gains:
    cases = sorted(cases, key=lambda case: case.spec.num_replicas)
    fewest, *others = results = [
        outcomes(case, metric, is_higher_better=is_higher_better) for case in cases
    ]
    target, missed = run_scores.target_of(
        fewest,
        is_higher_better=is_higher_better,
        num_others=min(map(len, results)),
    )
    better = [
        run_scores.probability_of_improvement(
            of_case, fewest, is_higher_better=is_higher_better
        )
        for of_case in others
    ]

    def time(case: Case, unit: str) -> TimeToTarget:
        """Returns what runs needed; failed ones end with the longest."""
        curves = [
            [
                (getattr(point, _SPENT[unit]), quality.value)
                for point in entry.result.curve
                for quality in point.quality
                if quality.name == metric
            ]
            for entry in case.ok_entries
        ]
        times = [
            run_scores.first_reached(curve, target, is_higher_better=is_higher_better)
            for curve in curves
        ]
        longest = max(curve[-1][0] for curve in curves)
        times += [Time(amount=longest, is_reached=False)] * len(case.failed_entries)
        return run_scores.median_time(times, unit=unit)

    gains = tuple(
        Gain(case, of_case, time(case, "s"), time(case, "examples"))
        for case, of_case in zip(cases, [None, *better], strict=True)
    )
    backend = cases[0].spec.backend
    return Gains(metric, backend, target, missed, is_higher_better, gains)


def outcomes(case: Case, metric: str, *, is_higher_better: bool) -> list[float]:
    """Returns the quality at the end of each run, infinitely bad if it failed."""
    worst = -math.inf if is_higher_better else math.inf
    ended = [reached(entry, metric) for entry in case.ok_entries]
    return ended + [worst] * len(case.failed_entries)


def final(entry: Entry, metric: str) -> QualityMetric:
    """Returns a metric of a quality run at its last evaluation."""
    known = {quality.name: quality for quality in entry.result.curve[-1].quality}
    if metric not in known:
        raise errors.ResultsError(
            f"the quality runs of {entry.spec.workload} measure"
            f" {', '.join(sorted(known)) or 'nothing'}, not {metric!r}; choose one of"
            " these"
        )
    return known[metric]


def reached(entry: Entry, metric: str) -> float:
    return final(entry, metric).value
