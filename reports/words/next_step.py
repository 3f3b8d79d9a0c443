"""What would settle what a study leaves open, and what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.words import main_loss, marks, reproduce
from reports.words.marks import Level
from results.judging import power
from results.records.models import ScalingMode, TrialStatus
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from results.figures.comparisons import Comparison
    from results.figures.scaling import Point
    from results.statistics.estimates import Estimate

_NARROW = 1.02


def _narrower(view: View, open_figures: Sequence[Estimate]) -> str:
    """Returns the command that narrows what is open; nothing where nothing is.

    How many generations would settle a figure is not said: that supposes that the truth
    is what was measured, and of equal backends it was kept in 0.09 to 0.67.
    """
    numbers = [of.n for of in open_figures if _is_wide(of)]
    n = min(numbers, default=0)
    if n < estimates.FEWEST_FOR_INTERVAL:
        return ""
    before, after = (power.median_half_width(1.0, number) for number in (n, 2 * n))
    command = reproduce.with_repetitions(view.study.plan, 2 * n)
    does = f"makes intervals about {after / before:.1f} times as wide"
    return _typed(command, does)


def _is_wide(estimate: Estimate) -> bool:
    """Whether a narrower interval could matter."""
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return False
    return estimate.high / estimate.low > _NARROW


def _open(
    points: Sequence[Point], compared: Sequence[Comparison], target: float | None
) -> list[Estimate]:
    """Returns the figures that tell neither backends nor an efficiency apart."""
    ratios = [item.ratio for item in compared if item.ratio and not item.holds]
    if target is None:
        return ratios
    known = [point.efficiency for point in points if point.efficiency is not None]
    return [*ratios, *(of for of in known if not of.excludes(target))]


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
        _narrower(view, _open(points, compared, target)),
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
    (entry, *_) = largest.case.shown_entries
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
    if not all(entry.is_ok for entry in view.study.planned):
        return after_failures(view, "what 'status' says of the others")
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


def after_failures(view: View, what: str = "this") -> str:
    """Returns what to do after a study of which too little is ok; as ``choose``.

    A program of the user's that was repaired is another one, so its study is as well.
    """
    states = {entry.state for entry in view.study.planned}
    if states & {status.value for status in TrialStatus}:
        again = reproduce.resume(view.study.plan, "--retry", "failed")
        if view.study.program is not None:
            again = reproduce.command_of_study(view.study.plan)
        return f"fix {what}, then `{again}`"
    return f"`{reproduce.resume(view.study.plan)}` runs what is missing"
