"""What a study leaves open: what time is lost to, what would settle it, what it takes.

Commands are the one that made the study with some options replaced: they can be run.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from reports.words import caveats, formats, names
from reports.words.caveats import Level
from results.judging import power
from results.records.models import Control, ScalingMode, TrialStatus
from results.records.texts import without_options
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reports.view import View
    from results.figures.lost_time import LostTime
    from results.figures.scaling import Comparison, Point
    from results.records.measuring import MachineState
    from results.records.models import Plan
    from results.statistics.estimates import Estimate
    from results.study.cases import Case

HARNESS: Final = "python -m harness"
_OF_THE_STUDY: Final = ("--study", "--runs-dir")
"""A study is only continued by the code that began it; its folder is private."""
_OF_ANOTHER_STUDY: Final = ("--repeats", "--minutes", *_OF_THE_STUDY)
"""Options with a value, which a new study has not; --minutes is of earlier versions."""
_SWEEP: Final = "sweep"
_NARROW: Final = 1.02
"""Ends of an interval that are no further apart need no narrower one."""


def command_of_study(plan: Plan) -> str:
    """Returns the command that measures a study again, in a folder of its own."""
    options = {} if _SWEEP not in plan.command else _replicas(plan)
    return _command(plan, options, _OF_THE_STUDY)


def sizes_of(*numbers: int) -> str:
    return ",".join(str(number) for number in sorted(set(numbers)))


def other_study(plan: Plan, options: Mapping[str, str]) -> str:
    """Returns the command of the same with other options; "" if ``sweep`` made none."""
    if _SWEEP not in plan.command:
        return ""
    return _command(plan, {**_replicas(plan), **options}, _OF_ANOTHER_STUDY)


def with_repetitions(plan: Plan, number: int) -> str:
    """Returns the command of a new study with so many repetitions."""
    options = {"--repeats": str(number)}
    minutes = plan.measuring.minutes
    if minutes is not None and plan.measuring.target is None:
        # A repetition stays as long as it was.
        options["--time-budget"] = f"{minutes * number / max(plan.repeats, 1):g}min"
    return other_study(plan, options)


def resume(plan: Plan, *options: str) -> str:
    return f"{HARNESS} {shlex.join(('sweep', '--study', plan.study, *options))}"


def export(plan: Plan, form: str) -> str:
    return f"{HARNESS} {shlex.join(('report', plan.study, '--format', form))}"


def _replicas(plan: Plan) -> dict[str, str]:
    """Returns the numbers of replicas, whose default depends on the machine."""
    if any(word.partition("=")[0] == "--replicas" for word in plan.command):
        return {}
    sizes = {
        trial.spec.num_replicas
        for trial in plan.trials
        if trial.spec.budget is None and trial.spec.control is Control.NONE
    }
    return {"--replicas": sizes_of(*sizes)} if sizes else {}


def _command(plan: Plan, options: Mapping[str, str], without: Iterable[str]) -> str:
    """Replaces options of a command."""
    kept = without_options(plan.command, *without, *options)
    return shlex.join([*kept, *(word for pair in options.items() for word in pair)])


def commits_of(cases: Iterable[Case]) -> set[str]:
    return {state.commit_text for state in committed(cases)}


def committed(cases: Iterable[Case]) -> Iterator[MachineState]:
    for case in cases:
        for env in case.environments:
            state = env.machine_state
            if state is not None and state.git_commit is not None:
                yield state


# A cause and an advice need an efficiency whose interval is below 1.

REMEDIES: Final = {
    "contention": "try cores with memory bandwidth of their own",
    "exposed_communication": "try larger batches per replica",
    "input": "try a faster input pipeline",
    "imbalance": "try equal work per replica",
    "update": "try a sharded update",
}
"""By parts that a control has shown; what blocks record is too coarse for an advice."""


def _is_lost(efficiency: Estimate | None) -> bool:
    return efficiency is not None and efficiency.value < 1 and efficiency.excludes(1.0)


def _worst_loss(view: View, points: Sequence[Point]) -> tuple[Point, LostTime | None]:
    """Returns the point of the lowest efficiency, and the parts of its step."""
    point = min(points, key=lambda p: p.efficiency.value if p.efficiency else 1.0)
    for item in view.losses:
        is_same = item.case.case_id == point.case.case_id and item.lost is not None
        if is_same and (item.has_controls or item.mode is point.mode):
            return point, item.lost
    return point, None


def loss_sentence(view: View, points: Sequence[Point]) -> str:
    """Says what most of the time is lost to at the lowest efficiency."""
    point, lost = _worst_loss(view, points)
    efficiency = point.efficiency
    if not _is_lost(efficiency):
        is_below = efficiency is not None and efficiency.value < 1
        return f"Whether {point.backend} loses time is inconclusive." * is_below
    if lost is None:  # nobody can say, of a program of the user's
        return "Causes were not recorded." * (view.study.program is None)
    mode = f" in {point.mode.value} scaling" if len(points) > 1 else ""
    share = lost.lost.share
    if share is None or share.low is None:
        return "One run tells no cause of lost time."
    if not lost.main_loss:
        return (
            f"{point.backend} loses {formats.estimate(share, formats.percent)} of a"
            f" step{mode}; no single cause is shown to be most of it."
        )
    part = lost.part(lost.main_loss)
    assert part.share is not None
    return (
        f"Most of what {point.backend} loses{mode}: {names.PARTS[part.name][0]},"
        f" {formats.estimate(part.share, formats.percent)} of a step."
    )


def choose(
    view: View,
    level: Level,
    points: Sequence[Point],
    compared: Sequence[Comparison],
) -> str:
    """Says what would settle what is open; what is typed is in backticks."""
    plan = view.study.plan
    known = [p.efficiency for p in points if p.efficiency is not None]
    is_known = any(each.is_conclusive and each.has_interval for each in known)
    level_of = {each.name: each.level for each in caveats.collect(view)}
    quiet, drift = level_of.get("Quiet machine"), level_of.get("Drift")
    is_loud = level is Level.BAD and Level.BAD in (quiet, drift)
    is_coarse = Level.CAUTION is quiet is level_of.get("Resolution")
    repeated = with_repetitions(plan, caveats.ENOUGH_REPETITIONS)
    # The figures that tell neither backends nor an efficiency apart.
    target = plan.measuring.efficiency_target
    open_figures = [item.ratio for item in compared if item.ratio and not item.holds]
    if target is not None:
        open_figures += [each for each in known if not each.excludes(target)]
    point, lost = _worst_loss(view, points)
    is_lost = _is_lost(point.efficiency)
    candidates = [
        "repeat on a quiet machine" * is_loud,
        "" if is_known else _typed(repeated, "gives intervals"),
        _narrower(view, open_figures),
        _controls(view, points),
        REMEDIES.get(lost.main_loss, "") if is_lost and lost is not None else "",
        "repeat on a quiet machine" * is_coarse,
        _wider(view, points),
    ]
    return next(text for text in candidates if text)


def _typed(command: str, does: str) -> str:
    return f"`{command}` {does}" if command else ""


def _narrower(view: View, open_figures: Sequence[Estimate]) -> str:
    """Returns the command that narrows what is open; nothing where nothing is.

    How many repetitions would settle a figure is not said: that supposes that the truth
    is what was measured, and of equal backends it was kept in 0.09 to 0.67.
    """
    numbers = [
        figure.n
        for figure in open_figures
        if figure.low is not None
        and figure.high is not None
        and figure.low > 0
        and figure.high / figure.low > _NARROW
    ]
    n = min(numbers, default=0)
    if n < estimates.FEWEST_FOR_INTERVAL:
        return ""
    before, after = (power.median_half_width(1.0, number) for number in (n, 2 * n))
    does = f"narrows the intervals by {formats.percent(1 - after / before)}"
    return _typed(with_repetitions(view.study.plan, 2 * n), does)


def _controls(view: View, points: Sequence[Point]) -> str:
    is_explained = any(item.has_controls for item in view.losses)
    is_asked = view.study.program is None and not is_explained
    if not is_asked or not any(_is_lost(p.efficiency) for p in points):
        return ""
    options = {"--order": "interleaved", "--controls": "all"}
    command = other_study(view.study.plan, options)
    return _typed(command, "measures what the time is lost to")


def _wider(view: View, points: Sequence[Point]) -> str:
    """Returns what the study could measure beyond what it has."""
    if ScalingMode.STRONG not in view.study.modes:
        return "measure strong scaling"
    largest = max(points, key=lambda point: point.num_replicas)
    (entry, *_) = largest.case.shown_entries
    if entry.env is None:
        return "measure more replicas"
    free = entry.env.placement.num_available_cores
    if largest.num_replicas * largest.case.spec.cores_per_replica < free:
        return f"measure more replicas: there are {free} cores"
    return "measure on a machine with more cores"


def with_a_baseline(view: View) -> str:
    """Returns the command that measures something to compare with."""
    if not all(entry.is_ok for entry in view.study.planned):
        return after_failures(view, "what 'status' says of the others")
    plan = view.study.plan
    measured = {point.num_replicas for point in view.points}
    most = max(measured | {2 * plan.baseline_num_replicas})
    sizes = sizes_of(plan.baseline_num_replicas, most)
    command = other_study(plan, {"--replicas": sizes})
    return _typed(command, "has a baseline and more")


def after_failures(view: View, what: str = "this") -> str:
    """Returns what to do after failures; a repaired program is another study."""
    states = {entry.state for entry in view.study.planned}
    if not states & {status.value for status in TrialStatus}:
        return f"`{resume(view.study.plan)}` runs what is missing"
    again = resume(view.study.plan, "--retry", "failed")
    if view.study.program is not None:
        again = command_of_study(view.study.plan)
    return f"fix {what}, then `{again}`"
