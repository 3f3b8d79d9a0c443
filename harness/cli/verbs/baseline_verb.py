"""The verb ``baseline``: names a study, against which ``gate`` then judges."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Literal

import click

from harness.cli import exit_codes
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, complete_study
from harness.errors import PlanError, StudyError
from harness.judging import baselines
from harness.options.notation import NAMES
from harness.options.option import Option, Options
from harness.planning import study as study_module
from results.judging import day_effect

if TYPE_CHECKING:
    from harness.cli.verb import Call
    from harness.judging.baselines import Baseline


class BaselineRequest(Options):
    """What is done with baselines."""

    action: Annotated[Literal["set", "list", "show"], Option(is_argument=True)]
    study: Annotated[str | None, Option(is_argument=True, complete=complete_study)] = (
        None
    )
    name: Annotated[
        str,
        Option(
            help="Name of the baseline; a gate that names none uses `default`.",
        ),
    ] = baselines.DEFAULT_NAME
    days: Annotated[
        tuple[str, ...],
        Option(
            kind=NAMES,
            help="With `set`: studies of the same code on at least"
            f" {day_effect.FEWEST_DAYS - 1} other days. What varies between days is"
            " then in the interval, and gates give verdicts.",
        ),
    ] = ()
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: BaselineRequest, _: Call) -> int:
    """Sets, lists or shows named baselines.

    Raises:
      PlanError: The arguments do not fit the action.
      ResultsError: There is no such study.
      StudyError: There is no such baseline, or the file cannot be read.
    """
    action, study, runs_dir = request.action, request.study, request.runs_dir
    if (action == "set") != (study is not None):
        needs = "a STUDY" if action == "set" else "no STUDY; use --name"
        raise PlanError(f"'baseline {action}' takes {needs}")
    if request.days and action != "set":
        raise PlanError(
            f"--days has no effect with 'baseline {action}'; use it with 'baseline set"
            " STUDY'"
        )
    if action == "set":
        assert study is not None
        loaded = study_module.load(study, runs_dir)
        if not any(case.ok_entries for case in loaded.cases):
            raise StudyError(
                f"study {study!r} has no trial that is ok, so nothing can be judged"
                " against it; finish it with 'sweep --study'"
            )
        if request.days:
            others = [study_module.load(name, runs_dir) for name in request.days]
            day_effect.check(loaded, others)
        made = baselines.set_baseline(runs_dir, request.name, study, request.days)
        click.echo(f"{made.name}: {made.study}{_days(made)}")
        return exit_codes.OK
    if action == "list":
        found = baselines.read_baselines(runs_dir)
        if request.is_json:
            data = [dataclasses.asdict(of) for of in found.values()]
            click.echo(json.dumps(data, indent=2))
        for of in () if request.is_json else found.values():
            click.echo(f"{of.name}: {of.study}{_days(of)}, set at {of.set_at}")
        return exit_codes.OK
    shown = baselines.get_baseline(runs_dir, request.name)
    if request.is_json:
        click.echo(json.dumps(dataclasses.asdict(shown), indent=2))
    else:
        click.echo(f"{shown.name}: {shown.study}{_days(shown)}, set at {shown.set_at}")
    return exit_codes.OK


def _days(baseline: Baseline) -> str:
    return f" and {len(baseline.days)} other days" if baseline.days else ""
