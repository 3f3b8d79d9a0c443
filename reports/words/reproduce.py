"""Commands of a page: how a study or one of its points is measured again, or extended.

Each is the command that made the study, with some options replaced, so it is complete:
it can be copied and run (``tests/reports/words/test_printed_commands.py`` runs them).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from results.figures.scaling import Point
    from results.records.machines.machine_record import MachineState
    from results.records.models import Plan
    from results.study.cases import Case, Study

HARNESS: Final = "python -m harness"
_OF_THE_FOLDER: Final = ("--runs-dir",)
"""Where the study was kept, which is nobody's business."""
_OF_THE_STUDY: Final = ("--study", *_OF_THE_FOLDER)
"""A study is only continued by the code that began it."""
_OF_ANOTHER_STUDY: Final = ("--repeats", *_OF_THE_STUDY)
"""Options of the study that was measured, with a value, which the new one has not."""
_SWEEP: Final = "sweep"


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
        "--replicas": sizes(plan.baseline_num_replicas, point.num_replicas),
        "--repeats": str(plan.repeats),
        "--seed": str(plan.seed),
    }
    if point.case.spec.program is None:  # a command of the user's has neither
        options = {"--backends": point.backend, **options, "--budget": "none"}
    return other_study(plan, options)


def sizes(*numbers: int) -> str:
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
        options["--minutes"] = f"{minutes * number / max(plan.repeats, 1):g}"
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
    kept = _without(plan.command, (*without, *options))
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
    return {"--replicas": sizes(*found)} if found else {}


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
