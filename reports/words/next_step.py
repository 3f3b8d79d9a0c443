"""What would settle what a study leaves open, and what it takes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from reports.words import marks, utilisation
from reports.words.marks import Level
from results.judging import power
from results.records.models import Control, ScalingMode, TrialStatus
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reports.view.view import View
    from results.figures.scaling import Comparison, Point
    from results.records.machine_record import MachineState
    from results.records.models import Plan
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Study


# Each is the command that made the study, with some options replaced, so it is
# complete: it can be copied and run (``tests/reports/words/test_printed_commands.py``
# runs them).

HARNESS: Final = "python -m harness"
_OF_THE_FOLDER: Final = ("--runs-dir",)
"""Where the study was kept, which is private."""
_OF_THE_STUDY: Final = ("--study", *_OF_THE_FOLDER)
"""A study is only continued by the code that began it."""
_OF_ANOTHER_STUDY: Final = ("--repeats", *_OF_THE_STUDY)
"""Options of the study that was measured, with a value, which the new one has not."""
_SWEEP: Final = "sweep"
_FORMER: Final = ("--minutes",)
"""What was --time-budget in studies of earlier versions."""


def command_of_study(plan: Plan) -> str:
    """Returns the command that measures a study again, in a folder of its own."""
    options = {} if _SWEEP not in plan.command else _replicas(plan)
    return shlex.join([*_without(plan.command, _OF_THE_STUDY), *_words(options)])


def command(plan: Plan, point: Point) -> str:
    """Returns the command that measures a point and its baseline again, or nothing.

    Nothing where the study was not made by the verb ``sweep``; so are those below.
    """
    options = {
        "--mode": point.mode.value,
        "--replicas": sizes_of(plan.baseline_num_replicas, point.num_replicas),
        "--repeats": str(plan.repeats),
        "--seed": str(plan.seed),
    }
    if point.case.spec.program is None:  # a command of the user's has neither
        options = {"--backends": point.backend, **options, "--budget": "none"}
    return other_study(plan, options)


def sizes_of(*numbers: int) -> str:
    """Returns numbers of replicas as an option has them."""
    return ",".join(str(number) for number in sorted(set(numbers)))


def other_study(plan: Plan, options: Mapping[str, str]) -> str:
    """Returns the command that measures the same with other options, as a new study."""
    return _with(plan, options, without=_OF_ANOTHER_STUDY)


def with_repetitions(plan: Plan, number: int) -> str:
    """Returns the command that measures the same in so many generations or repetitions.

    A study of its own, since only the code that began a study can extend it.
    """
    options = {"--repeats": str(number)}
    minutes = plan.measuring.minutes
    if minutes is not None and plan.measuring.target is None:
        # A generation stays as long as it was.
        options["--time-budget"] = f"{minutes * number / max(plan.repeats, 1):g}min"
    return other_study(plan, options)


def resume(plan: Plan, *options: str) -> str:
    """Returns the command that runs what is missing of a study."""
    return f"{HARNESS} {shlex.join(('sweep', '--study', plan.study, *options))}"


def export(plan: Plan, form: str) -> str:
    """Returns the command that writes a study in another format."""
    return f"{HARNESS} {shlex.join(('report', plan.study, '--format', form))}"


def _with(plan: Plan, options: Mapping[str, str], *, without: Iterable[str]) -> str:
    if _SWEEP not in plan.command:
        return ""
    options = {**_replicas(plan), **options}
    kept = _without(plan.command, (*without, *options, *_FORMER))
    return shlex.join([*kept, *_words(options)])


def _replicas(plan: Plan) -> dict[str, str]:
    """Returns the numbers of replicas, unless the command says them.

    Their default depends on the machine that a command is typed on.
    """
    if any(word.partition("=")[0] == "--replicas" for word in plan.command):
        return {}
    found = {
        trial.spec.num_replicas
        for trial in plan.trials
        if trial.spec.budget is None and trial.spec.control is Control.NONE
    }
    return {"--replicas": sizes_of(*found)} if found else {}


def _words(options: Mapping[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def commits(case: Case) -> str:
    """Returns the commits of the source trees that measured a case."""
    return ", ".join(sorted(commits_of([case]))) or "not recorded"


def commits_of(cases: Iterable[Case]) -> set[str]:
    """Returns the commits of the source trees that measured some cases."""
    return {state.commit_text for state in _committed(cases)}


def whole_commits_of(study: Study) -> set[str]:
    """Returns the commits of all source trees of a study, for addresses."""
    both = (*study.cases, *study.other_revisions)
    return {str(state.git_commit) for state in _committed(both)}


def _committed(cases: Iterable[Case]) -> Iterator[MachineState]:
    for case in cases:
        for entry in case.ok_entries:
            env = entry.trial.env if entry.trial is not None else None
            state = env.machine_state if env is not None else None
            if state is not None and state.git_commit is not None:
                yield state


def seeds(case: Case) -> str:
    """Returns the seeds of the trials of a case, in the order of repetitions."""
    return ", ".join(str(entry.spec.seed) for entry in case.ok_entries)


def _without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns arguments without options, given as two words or with an equals sign."""
    kept = []
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument in options:
            is_value = True
        elif argument.partition("=")[0] not in options:
            kept.append(argument)
    return kept


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
    command = with_repetitions(view.study.plan, 2 * n)
    does = f"narrows the intervals by {1 - after / before:.0%}"
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
            with_repetitions(view.study.plan, marks.ENOUGH_REPETITIONS),
            "gives intervals",
        ),
        _narrower(view, _open(points, compared, target)),
        _controls(view, points) if view.study.program is None else "",
        utilisation.remedy(view, points),
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
    if view.explained or not any(utilisation.is_lost(p.efficiency) for p in points):
        return ""
    options = {"--order": "interleaved", "--controls": "all"}
    command = other_study(view.study.plan, options)
    return _typed(command, "measures what the time is lost to")


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
        again = resume(view.study.plan, "--retry", "failed")
        if view.study.program is not None:
            again = command_of_study(view.study.plan)
        return f"fix {what}, then `{again}`"
    return f"`{resume(view.study.plan)}` runs what is missing"
