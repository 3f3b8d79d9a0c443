"""How one point of a report is measured again: command, commit, seed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures.scaling import Point
    from results.records.models import Plan
    from results.study.cases import Case

_OF_ANOTHER_STUDY: Final = ("--study", "--runs-dir", "--repeats")
"""Options of the study that was measured, with a value, which the new one has not."""
_OF_A_POINT: Final = ("--backends", "--replicas", "--mode", "--seed", "--budget")


def command_of_study(plan: Plan) -> str:
    """Returns the command that made a study, without the folder it was kept in."""
    return shlex.join(_without(plan.command, ("--runs-dir",)))


def command(plan: Plan, point: Point) -> str:
    """Returns the command that measures a point and its baseline again.

    Empty where the study was not made by the verb ``sweep``.
    """
    if "sweep" not in plan.command:
        return ""
    kept = _without(plan.command, (*_OF_ANOTHER_STUDY, *_OF_A_POINT))
    sizes = sorted({plan.baseline_num_replicas, point.num_replicas})
    if point.case.spec.program is None:
        kept += ["--backends", point.backend, "--budget", "none"]
    kept += [
        *("--mode", point.mode.value),
        *("--replicas", ",".join(str(size) for size in sizes)),
        *("--repeats", str(plan.repeats)),
        *("--seed", str(plan.seed)),
    ]
    return shlex.join(kept)


def commits(case: Case) -> str:
    """Returns the commits of the source trees that measured a case."""
    found = set()
    for entry in case.ok_entries:
        env = entry.trial.env if entry.trial is not None else None
        state = env.machine_state if env is not None else None
        if state is not None and state.git_commit is not None:
            found.add(state.commit_text)
    return ", ".join(sorted(found)) or "not recorded"


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
