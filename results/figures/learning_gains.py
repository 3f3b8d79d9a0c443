"""What more replicas change in learning: better results, and less time to a target.

Per metric and backend, runs with more replicas are compared with the fewest; it takes
three seeds of each. A run that failed is worse than any other.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from results import errors
from results.statistics import run_scores
from results.statistics.run_scores import Time, TimeToTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.models import QualityMetric
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry, Study


_SPENT: Final = {"s": "train_time_sec", "examples": "num_examples"}
"""By unit, what a run spends until it reaches a target."""


def time_to_target(
    case: Case, metric: str, target: float, unit: str, *, is_higher_better: bool
) -> TimeToTarget:
    """Returns what runs needed to reach a target; failed ones end with the longest."""
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    case: Case  # The case.
    # How probably a run is better than with the fewest; None for those themselves.
    better: Estimate | None
    seconds: TimeToTarget  # Training time to the target.
    examples: TimeToTarget  # Examples to the target.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gains:
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


def metric_gains(name: str, study: Study) -> tuple[Gains, ...]:
    """Returns what more replicas change, by backend; empty where nothing compares."""
    facts = study.metrics.get(name)
    is_higher_better = None if facts is None else facts.is_higher_better
    cases = study.quality_runs
    protocols = {
        (metric.protocol, metric.num_examples if metric.protocol else 0)
        for case in cases
        for metric in _metrics(case)
        if metric.name == name
    }
    if is_higher_better is None or len(protocols) != 1:
        return ()
    by_backend: dict[str, list[Case]] = {}
    for case in cases:
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
        _backend_gains(
            name,
            sorted(own, key=lambda case: case.spec.num_replicas),
            is_higher_better=is_higher_better,
        )
        for own in by_backend.values()
    )


def _metrics(case: Case) -> list[QualityMetric]:
    return [
        metric
        for entry in case.ok_entries
        for point in entry.result.curve
        for metric in point.quality
    ]


def _backend_gains(
    metric: str, cases: Sequence[Case], *, is_higher_better: bool
) -> Gains:
    fewest = cases[0]
    results = {
        case.case_id: outcomes(case, metric, is_higher_better=is_higher_better)
        for case in cases
    }
    reached = results[fewest.case_id]
    target, missed = run_scores.target_of(
        reached,
        is_higher_better=is_higher_better,
        num_others=min(map(len, results.values())),
    )

    gains = []
    for case in cases:
        better = None
        if case is not fewest:
            better = run_scores.probability_of_improvement(
                results[case.case_id], reached, is_higher_better=is_higher_better
            )
        seconds, examples = (
            time_to_target(
                case, metric, target, unit, is_higher_better=is_higher_better
            )
            for unit in _SPENT
        )
        gain = Gain(case=case, better=better, seconds=seconds, examples=examples)
        gains.append(gain)
    return Gains(
        metric=metric,
        backend=fewest.spec.backend,
        target=target,
        missed=missed,
        is_higher_better=is_higher_better,
        cases=tuple(gains),
    )


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
