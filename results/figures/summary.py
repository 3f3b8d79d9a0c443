"""A study as plain data, for ``--json`` and other programs."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Any

from results.figures import learning_gains, lost_time, scaling, trial_metrics
from results.study import cases as study_module
from results.study import matching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.statistics.estimates import Estimate
    from results.statistics.run_scores import TimeToTarget
    from results.store.study_store import Store

SUMMARY_VERSION = 1


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else dataclasses.asdict(estimate)


def _pick(source: object, *names: str) -> dict[str, Any]:
    """Returns attributes by name; JSON has no infinity: beyond what was measured."""
    return {name: _plain(getattr(source, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [*value]
    return value.value if isinstance(value, enum.Enum) else value


def _ends(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else _pick(estimate, "value", "low", "high")


def _point(point: scaling.Point) -> dict[str, Any]:
    case = point.case
    return {
        **_pick(point, "backend", "mode", "num_replicas"),
        **_pick(case.spec, "per_replica_batch_size", "global_batch_size"),
        **_pick(point, "is_baseline", "is_oversubscribed"),
        **{
            name: _estimate(figure.estimate)
            for name, figure in scaling.of_point(point).items()
        },
        "missing_reason": point.missing_reason,
        "num_planned": len(case.entries),
        "trial_ids": [*point.trial_ids],
    }


def _comparison(comparison: scaling.Comparison) -> dict[str, Any]:
    return {
        "first": comparison.first.spec.backend,
        "second": comparison.second.spec.backend,
        "num_replicas": comparison.first.spec.num_replicas,
        "modes": [mode.value for mode in comparison.modes],
        "is_oversubscribed": comparison.is_oversubscribed,
        "ratio": _estimate(comparison.ratio),
        **_pick(comparison, "holds", "num_compared", "trial_ids"),
    }


def _agreements(found: matching.Agreements) -> dict[str, Any]:
    return {
        "num_steps": found.num_steps,
        "tolerance": matching.TOLERANCE,
        "repeats_itself": found.repeats_itself,
        "pairs": [
            {
                "first": pair.first.spec.backend,
                "second": pair.second.spec.backend,
                **_pick(pair.first.spec, "num_replicas", "per_replica_batch_size"),
                "largest_relative_difference": pair.difference,
                "n": pair.num_pairs,
                "holds": pair.holds,
            }
            for pair in found.pairs
        ],
    }


def _match(match: matching.Match) -> dict[str, Any]:
    return {
        **_pick(match, "backend", "num_replicas", "outcome", "reason"),
        "global_batch_size": match.global_batch_size,
        "num_steps": matching.NUM_STEPS,
        "loss_difference": _plain(match.loss_difference),
        "loss_tolerance": matching.LOSS_TOLERANCE,
        **_pick(match, "change_difference", "change_tolerance", "changed", "remark"),
    }


def _quality_run(entry: study_module.Entry) -> dict[str, Any]:
    spec, point = entry.spec, entry.result.curve[-1]
    return {
        **_pick(spec, "backend", "num_replicas", "global_batch_size"),
        "budget": str(spec.budget),
        **_pick(point, "num_steps", "num_examples", "train_time_sec"),
        "reached": [metric.model_dump(mode="json") for metric in point.quality],
        "trial_ids": [entry.trial_id],
    }


def _explained(item: lost_time.Explained) -> dict[str, Any]:
    return {
        **_pick(item.case.spec, "backend", "num_replicas", "per_replica_batch_size"),
        "lost_time": None if item.lost is None else _lost(item.lost),
        "missing_reason": item.reason,
        "trial_ids": [*item.trial_ids],
    }


def _lost(lost: lost_time.LostTime) -> dict[str, Any]:
    bound = lost.input_bound
    return {
        "step": _part(lost.step),
        "parts": [_part(part) for part in lost.parts],
        **_pick(lost, "num_generations", "num_left_out", "method"),
        "confidence": lost.whole.confidence,
        "input_bound": None
        if bound is None
        else {
            "input_sec": _ends(bound.input_sec),
            "fraction": _ends(bound.fraction),
            "excess_sec": _ends(bound.excess_sec),
            **_pick(bound, "verdict", "explains_loss"),
        },
    }


def _part(part: lost_time.Part) -> dict[str, Any]:
    names = "name", "value_sec", "low_sec", "high_sec", "reason"
    return {**_pick(part, *names), "share": _ends(part.share)}


def _gains(found: learning_gains.Gains) -> dict[str, Any]:
    first = found.cases[0].case
    return {
        **_pick(found, "metric", "backend", "target"),
        "missed_by_chance": found.missed,
        "is_higher_better": found.is_higher_better,
        "cases": [
            {
                "num_replicas": gain.case.spec.num_replicas,
                "better": None
                if gain.better is None
                else {
                    **_pick(gain.better, "value", "low", "high"),
                    "num_first": _num_runs(gain.case),
                    "num_second": _num_runs(first),
                    **_pick(gain.better, "method", "confidence"),
                },
                "seconds_to_target": _time(gain.seconds),
                "examples_to_target": _time(gain.examples),
                "trial_ids": [entry.trial_id for entry in gain.case.entries],
            }
            for gain in found.cases
        ],
    }


def _num_runs(case: study_module.Case) -> int:
    return len(case.ok_entries) + len(case.failed_entries)


def _time(time: TimeToTarget) -> dict[str, Any]:
    return {
        **_pick(time.median, "value", "low", "high"),
        **_pick(time, "budget", "num_reached"),
        **_pick(time.median, "n", "unit", "method", "confidence"),
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
        "comparisons": [_comparison(item) for item in scaling.compare_backends(study)],
        "agreement": _agreements(matching.agreements_of(study)),
        "matches": [_match(match) for match in study.matches],
        "lost_time": [_explained(item) for item in lost_time.explain(study)],
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
            {"path": problem.label, "reason": problem.reason}
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
                **_pick(metric, "title", "is_higher_better"),
                **_pick(case.spec, "backend", "num_replicas", "per_replica_batch_size"),
                "figure": _estimate(cell.estimate),
                "missing_reason": cell.why_not,
                "trial_ids": [entry.trial_id for entry in case.ok_entries],
            }
            for metric in trial_metrics.installed(frame.TRIAL_COLUMNS)
            for case in cases.values()
            for cell in [scaling.of_trials(case, metric.name)]
        ]
    }


def summary(store: Store) -> dict[str, Any]:
    """Reads a study and returns its figures as plain data (JSON-able).

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    return summarize(study_module.load_study(store))
