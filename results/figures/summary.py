"""A study as plain data, for ``--json`` and other programs."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING, Any

from results.figures import (
    comparisons,
    explain,
    learning_gains,
    scaling,
    table,
    trial_metrics,
)
from results.study import agreement, matching
from results.study import cases as study_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures import lost_time
    from results.statistics.estimates import Estimate
    from results.statistics.time_to_target import TimeToTarget
    from results.store.study_store import Store

SUMMARY_VERSION = 1


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else dataclasses.asdict(estimate)


def _point(point: scaling.Point) -> dict[str, Any]:
    case = point.case
    return {
        "backend": point.backend,
        "mode": point.mode.value,
        "num_replicas": point.num_replicas,
        "per_replica_batch_size": case.spec.per_replica_batch_size,
        "global_batch_size": case.spec.global_batch_size,
        "is_baseline": point.is_baseline,
        "is_oversubscribed": point.is_oversubscribed,
        **{
            name: _estimate(figure.estimate)
            for name, figure in table.of_point(point).items()
        },
        "missing_reason": point.missing_reason,
        "num_planned": len(case.entries),
        "trial_ids": list(point.trial_ids),
    }


def _comparison(comparison: comparisons.Comparison) -> dict[str, Any]:
    return {
        "first": comparison.first.spec.backend,
        "second": comparison.second.spec.backend,
        "num_replicas": comparison.first.spec.num_replicas,
        "modes": [mode.value for mode in comparison.modes],
        "is_oversubscribed": comparison.is_oversubscribed,
        "ratio": _estimate(comparison.ratio),
        "holds": comparison.holds,
        "num_compared": comparison.num_compared,
        "trial_ids": list(comparison.trial_ids),
    }


def _agreements(found: agreement.Agreements) -> dict[str, Any]:
    return {
        "num_steps": found.num_steps,
        "tolerance": agreement.TOLERANCE,
        "repeats_itself": found.repeats_itself,
        "pairs": [
            {
                "first": pair.first.spec.backend,
                "second": pair.second.spec.backend,
                "num_replicas": pair.first.spec.num_replicas,
                "per_replica_batch_size": pair.first.spec.per_replica_batch_size,
                "largest_relative_difference": pair.difference,
                "n": pair.num_pairs,
                "holds": pair.holds,
            }
            for pair in found.pairs
        ],
    }


def _match(match: matching.Match) -> dict[str, Any]:
    return {
        "backend": match.backend,
        "num_replicas": match.num_replicas,
        "outcome": match.outcome.value,
        "reason": match.reason,
        "global_batch_size": match.global_batch_size,
        "num_steps": matching.NUM_STEPS,
        # JSON has no infinity: a side that lacks losses or a change.
        "loss_difference": _finite(match.loss_difference),
        "loss_tolerance": matching.LOSS_TOLERANCE,
        "change_difference": _finite(match.change_difference),
        "change_tolerance": match.change_tolerance,
        "changed": match.changed,
        "remark": match.remark,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _quality_run(entry: study_module.Entry) -> dict[str, Any]:
    spec, point = entry.spec, entry.result.curve[-1]
    return {
        "backend": spec.backend,
        "num_replicas": spec.num_replicas,
        "global_batch_size": spec.global_batch_size,
        "budget": str(spec.budget),
        "num_steps": point.num_steps,
        "num_examples": point.num_examples,
        "train_time_sec": point.train_time_sec,
        "reached": [metric.model_dump(mode="json") for metric in point.quality],
        "trial_ids": [entry.trial_id],
    }


def _explained(item: explain.Explained) -> dict[str, Any]:
    spec = item.case.spec
    return {
        "backend": spec.backend,
        "num_replicas": spec.num_replicas,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "lost_time": None if item.lost is None else _lost(item.lost),
        "missing_reason": item.reason,
        "trial_ids": list(item.trial_ids),
    }


def _lost(lost: lost_time.LostTime) -> dict[str, Any]:
    bound = lost.input_bound
    return {
        "step": _part(lost.step),
        "parts": [_part(part) for part in lost.parts],
        "num_generations": lost.num_generations,
        "num_left_out": lost.num_left_out,
        "method": lost.method,
        "confidence": lost.whole.confidence,
        "input_bound": None
        if bound is None
        else {
            "input_sec": _ends(bound.input_sec),
            "fraction": _ends(bound.fraction),
            "excess_sec": _ends(bound.excess_sec),
            "verdict": bound.verdict,
            "explains_loss": bound.explains_loss,
        },
    }


def _part(part: lost_time.Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "value_sec": part.value_sec,
        "low_sec": part.low_sec,
        "high_sec": part.high_sec,
        "reason": part.reason,
        "share": None if part.share is None else _ends(part.share),
    }


def _ends(estimate: Estimate) -> dict[str, Any]:
    # JSON has no infinity: what is beyond what was measured.
    return {name: _finite(getattr(estimate, name)) for name in ("value", "low", "high")}


def _gains(found: learning_gains.Gains) -> dict[str, Any]:

    def num_runs(case: study_module.Case) -> int:
        return len(case.ok_entries) + len(case.failed_entries)

    return {
        "metric": found.metric,
        "backend": found.backend,
        "target": found.target,
        "missed_by_chance": found.missed,
        "is_higher_better": found.is_higher_better,
        "cases": [
            {
                "num_replicas": gain.case.spec.num_replicas,
                "better": None
                if gain.better is None
                else {
                    **_ends(gain.better),
                    "num_first": num_runs(gain.case),
                    "num_second": num_runs(found.cases[0].case),
                    "method": gain.better.method,
                    "confidence": gain.better.confidence,
                },
                "seconds_to_target": _time(gain.seconds),
                "examples_to_target": _time(gain.examples),
                "trial_ids": [entry.trial_id for entry in gain.case.entries],
            }
            for gain in found.cases
        ],
    }


def _time(time: TimeToTarget) -> dict[str, Any]:
    return {
        **_ends(time.median),
        "budget": time.budget,
        "num_reached": time.num_reached,
        "n": time.median.n,
        "unit": time.median.unit,
        "method": time.median.method,
        "confidence": time.median.confidence,
    }


def summarize(study: study_module.Study) -> dict[str, Any]:
    """Returns the figures of a study; every value has unit, n, low and high."""
    points = scaling.points(study)
    states = collections.Counter(entry.state for entry in study.planned)
    return {
        "summary_version": SUMMARY_VERSION,
        "study": study.plan.study,
        "baseline_num_replicas": study.plan.baseline_num_replicas,
        "repeats": study.plan.repeats,
        "coverage": {"planned": len(study.planned), **dict(sorted(states.items()))},
        "points": [_point(point) for point in points],
        "comparisons": [_comparison(item) for item in comparisons.of_study(study)],
        "agreement": _agreements(agreement.of_study(study)),
        "matches": [_match(match) for match in study.matches],
        "lost_time": [_explained(item) for item in explain.explain(study)],
        "metrics": [facts.model_dump(mode="json") for facts in study.plan.metrics],
        **_of_plugins(points),
        "learning_gains": [_gains(gains) for gains in learning_gains.of_study(study)],
        "quality_runs": [
            _quality_run(entry)
            for run in study.quality_runs
            for entry in run.ok_entries
        ],
        "failures": [
            {"trial_id": entry.trial_id, "state": entry.state, "reason": entry.reason}
            for entry in study.planned
            if not entry.is_ok
        ],
        "problems": [
            {
                "path": problem.label,
                "reason": problem.reason,
            }
            for problem in study.problems
        ],
    }


def _of_plugins(points: Sequence[scaling.Point]) -> dict[str, Any]:
    """The figures of metrics that packages of others add; nothing if none do."""
    if not trial_metrics.names():
        return {}
    from results.figures import frame  # its libraries are not needed otherwise

    cases = {point.case.case_id: point.case for point in points}
    return {
        "figures_of_plugins": [
            {
                "metric": metric.name,
                "title": metric.title,
                "is_higher_better": metric.is_higher_better,
                "backend": case.spec.backend,
                "num_replicas": case.spec.num_replicas,
                "per_replica_batch_size": case.spec.per_replica_batch_size,
                "figure": _estimate(cell.estimate),
                "missing_reason": cell.why_not,
                "trial_ids": [entry.trial_id for entry in case.ok_entries],
            }
            for metric in trial_metrics.installed(frame.TRIAL_COLUMNS)
            for case in cases.values()
            for cell in [table.of_trials(case, metric.name)]
        ]
    }


def summary(store: Store) -> dict[str, Any]:
    """Reads a study and returns its figures as plain data (JSON-able).

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    return summarize(study_module.load_study(store))
