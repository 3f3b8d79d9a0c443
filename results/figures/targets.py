"""Seconds and examples to a target quality, from the quality runs of a study."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from results import errors
from results.statistics import time_to_target
from results.statistics.time_to_target import Time, TimeToTarget

if TYPE_CHECKING:
    from results.records.models import QualityPoint, TrialResult
    from results.study.cases import Case


class Axis(str, Enum):
    """What a run spends until it reaches a target."""

    SECONDS = "s"
    EXAMPLES = "examples"

    def of(self, point: QualityPoint) -> float:
        """What was spent at a point of a run."""
        return point.train_time_sec if self is Axis.SECONDS else point.num_examples


def of_case(
    case: Case, metric: str, target: float, *, is_higher_better: bool, axis: Axis
) -> TimeToTarget | None:
    """Returns what the quality runs of a case needed to reach a target.

    A run that ended without reaching it is censored where it ended. A trial that failed
    never reached it: it is censored where the longest run ended. Trials that were not
    started are left out.
    """
    if not case.ok_entries:
        return None
    curves = [
        _curve(entry.result, metric, axis, case.label) for entry in case.ok_entries
    ]
    times = [
        time_to_target.first_reached(curve, target, is_higher_better=is_higher_better)
        for curve in curves
    ]
    longest = max(curve[-1][0] for curve in curves)
    times += [Time(amount=longest, is_reached=False)] * len(case.failed_entries)
    return time_to_target.median(times, unit=axis.value)


def _curve(
    result: TrialResult, metric: str, axis: Axis, label: str
) -> list[tuple[float, float]]:
    curve = [
        (axis.of(point), quality.value)
        for point in result.curve
        for quality in point.quality
        if quality.name == metric
    ]
    if not curve:
        found = {q.name for point in result.curve for q in point.quality}
        raise errors.ResultsError(
            f"quality runs of {label!r} have no metric {metric!r}; they have "
            f"{', '.join(sorted(found)) or 'none'}"
        )
    return curve
