"""What would settle what a study leaves open, and what it takes."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from reports.words import formats, main_loss, marks, reproduce
from reports.words.marks import Level
from results.judging import power
from results.records.models import ScalingMode, TrialStatus
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from results.figures.scaling import Comparison, Point
    from results.statistics.estimates import Estimate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What it takes to tell a figure from a value.

    Attributes:
      num_more: Generations or repetitions beyond those measured; None if
        ``power.MOST_GENERATIONS`` do not suffice.
    """

    num_more: int | None


def spread_of(estimate: Estimate) -> float | None:
    """Returns the standard deviation of the logarithm that an interval stands for."""
    if estimate.low is None or estimate.high is None or estimate.n < 2:  # noqa: PLR2004 - one value has no spread
        return None
    if estimate.low <= 0 or not math.isfinite(estimate.high / estimate.low):
        return None  # as wide as an interval can be
    half = math.log(estimate.high / estimate.low) / 2
    quantile = estimates.student_quantile(
        estimate.n - 1, confidence=estimate.confidence
    )
    return half * math.sqrt(estimate.n) / quantile or None


def to_exclude(estimate: Estimate, value: float) -> Need | None:
    """Returns how many generations half of all studies need to exclude a value.

    None without a spread, or where the estimate is the value.
    """
    spread = spread_of(estimate)
    if spread is None or estimate.value <= 0 or estimate.value == value:
        return None
    effect = abs(math.log(estimate.value / value))
    for number in range(estimate.n + 1, power.MOST_GENERATIONS + 1):
        if power.median_half_width(spread, number) < effect:
            more = number - estimate.n
            return Need(num_more=more)
    return Need(num_more=None)


def _minutes_of_one(view: View) -> float:
    """Minutes of one generation, or of one repetition of all cases."""
    plan = view.study.plan
    if plan.measuring.generation_sec is not None:
        return plan.measuring.generation_sec / 60
    seconds = math.fsum(
        entry.trial.status.duration_sec
        for entry in view.study.planned
        if not entry.spec.budget
        and entry.trial is not None
        and entry.trial.status is not None
    )
    return seconds / 60 / max(plan.repeats, 1)


def _cost(view: View, estimate: Estimate, number: int) -> str:
    """Names the generations that are needed in all, their time, and the command."""
    total = estimate.n + number
    minutes = formats.whole(math.ceil(total * _minutes_of_one(view)))
    cost = f"{total} {view.repetitions} ({minutes} min)"
    typed = reproduce.with_repetitions(view.study.plan, total)
    return f"{cost}, `{typed}`," if typed else cost


def for_comparison(view: View, comparison: Comparison) -> str:
    """Says what would tell which of two backends is faster; "" if nothing is open.

    Nothing either where so many generations would be needed that equal backends are as
    likely.
    """
    assert comparison.ratio is not None
    need = to_exclude(comparison.ratio, 1.0)
    if comparison.ratio.excludes(1.0) or need is None:
        return ""
    if need.num_more is None:
        return ""
    return f"{_cost(view, comparison.ratio, need.num_more)} may rank them"


def for_efficiency(view: View, point: Point, target: float | None) -> str:
    """Says what would show whether an efficiency meets its target; "" if it is known.

    Nothing either if it would take too long.
    """
    assert point.efficiency is not None
    if target is None or point.efficiency.excludes(target):
        return ""
    need = to_exclude(point.efficiency, target)
    if need is None or need.num_more is None:
        return ""
    cost = _cost(view, point.efficiency, need.num_more)
    return f"{cost} may tell whether it keeps {formats.percent(target)}"


def choose(
    view: View,
    level: Level,
    points: Sequence[Point],
    compared: Sequence[Comparison],
) -> str:
    """Says what would settle what is open, the most important first.

    What is typed is in backticks.
    """
    target = view.study.plan.measuring.efficiency_target
    known = [p.efficiency for p in points if p.efficiency is not None]
    is_known = any(of.is_conclusive and of.has_interval for of in known)
    candidates = [
        ""
        if level is not Level.BAD or _is_quiet(view)
        else "repeat on a quiet machine",
        ""
        if is_known
        else _typed(
            reproduce.with_repetitions(view.study.plan, marks.ENOUGH_REPETITIONS),
            "gives intervals",
        ),
        *(for_comparison(view, item) for item in compared),
        *(for_efficiency(view, point, target) for point in points),
        _controls(view, points) if view.study.program is None else "",
        main_loss.remedy(view, points),
        _wider(view, points),
    ]
    return next(text for text in candidates if text)


def _typed(command: str, does: str) -> str:
    """Says what a command does; nothing where there is no command."""
    return f"`{command}` {does}" if command else ""


def _wider(view: View, points: Sequence[Point]) -> str:
    """Returns what the study could measure beyond what it has."""
    if ScalingMode.STRONG not in view.study.modes:
        return "strong scaling"
    largest = max(points, key=lambda point: point.num_replicas)
    (entry, *_) = largest.case.ok_entries
    if entry.trial is None or entry.trial.env is None:
        return "more replicas"
    free = entry.trial.env.placement.num_available_cores
    if largest.num_replicas * largest.case.spec.cores_per_replica < free:
        return f"more replicas, of {free} cores"
    return "a machine with more cores"


def _controls(view: View, points: Sequence[Point]) -> str:
    """Returns the command that measures what is lost; nothing where nothing is."""
    if view.explained or not any(main_loss.is_lost(p.efficiency) for p in points):
        return ""
    options = {"--order": "relay", "--controls": "all"}
    command = reproduce.other_study(view.study.plan, options)
    return _typed(command, "measures what the time is lost to")


def with_a_baseline(view: View) -> str:
    """Returns the command that measures something to compare with."""
    plan = view.study.plan
    measured = {point.num_replicas for point in view.points}
    most = max(measured | {2 * plan.baseline_num_replicas})
    sizes = reproduce.sizes(plan.baseline_num_replicas, most)
    command = reproduce.other_study(plan, {"--replicas": sizes})
    return _typed(command, "has a baseline and more")


def _is_quiet(view: View) -> bool:
    """Whether nothing about the machine is bad."""
    return not any(
        mark.level is Level.BAD and mark.name in ("Quiet machine", "Drift")
        for mark in marks.of_view(view)
    )


def after_failures(view: View) -> str:
    """Returns what to do after a study of which nothing is ok; as ``choose``."""
    states = {entry.state for entry in view.study.planned}
    if states & {status.value for status in TrialStatus}:
        again = reproduce.resume(view.study.plan, "--retry", "failed")
        return f"fix this, then `{again}`"
    return f"`{reproduce.resume(view.study.plan)}` runs what is missing"
