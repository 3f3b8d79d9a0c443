"""The verb ``trace``: runs one case of a study again, and records a timeline of it."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from harness import catalog
from harness.cli import exit_codes, progress
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, StudyArgument
from harness.errors import HarnessError, PlanError
from harness.machine import time_of_day
from harness.options.option import Option, Options
from harness.planning import study as study_module
from harness.run.trial_runner import RunSettings, run_trial
from harness.sources import same_code
from reports import output_file
from results.records import identity
from results.records.models import Control, Order, TrialStatus
from results.store import untrusted
from results.store.study_store import Store
from results.study import timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.cli.verb import Call
    from results.records.models import Plan, PlannedTrial
    from results.records.timeline_record import Timeline

_MOST_STEPS = 100
_WINDOW = 5  # steps before those that are recorded


class TraceRequest(Options):
    """What is recorded."""

    study: StudyArgument
    case: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            help="Which case, by the start of its id, or as `in_graph x2`.",
            default="the most replicas of a backend that links graphs",
        ),
    ] = None
    steps: Annotated[
        int, Option(metavar="N", help="Steps to record, after the measured ones.")
    ] = 3
    output: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Where the trace of Chrome is written.",
            default="`<study>-<case>.trace.json`",
        ),
    ] = None
    is_kept: Annotated[
        bool,
        Option(
            name="keep",
            help="Keep the last of these steps in the study, whose page then draws it.",
        ),
    ] = False
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: TraceRequest, call: Call) -> int:
    """Runs a case again and writes its timeline; the study stays as it is.

    With ``--keep`` the study has the last step as well, apart from its trials.

    Raises:
      PlanError: No such case, or one that cannot be recorded, or other code to keep.
      ResultsError: There is no such study, or it cannot be used.
    """
    if not 1 <= request.steps <= _MOST_STEPS:
        raise PlanError(
            f"--steps {request.steps} must be between 1 and {_MOST_STEPS}; 3 show"
            " whether steps are alike"
        )
    study = Store.open(study_module.find_study(request.study, request.runs_dir))
    plan = study.read_plan()
    planned = choose(plan, request.case)
    chosen = alone(planned)
    try:
        same_code.check_code(plan)
    except HarnessError as error:
        if request.is_kept:
            raise PlanError(
                f"--keep: the page of study {plan.study!r} would show a step of other"
                f" code than it measured: {error}; leave --keep out"
            ) from error
        click.echo(
            f"note: a timeline of other code than the study's: {error}", err=True
        )
    path = request.output or Path(f"{plan.study}-{chosen.case_id[:8]}.trace.json")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise PlanError(
            f"--output {str(path)!r}: there is no folder {str(folder)!r}; create it, or"
            " choose another"
        )
    output_file.check(path, what="timeline")
    with tempfile.TemporaryDirectory(prefix="trace-") as scratch:
        store = Store.create(Path(scratch) / "study")
        store.write_plan(
            plan.model_copy(update={"trials": (chosen,), "matching": None})
        )
        made = Path(scratch) / "trace.json"
        settings = RunSettings(
            **{
                "timeout_sec": plan.timeout_sec,
                "data_dir": plan.data_dir,
                **call.overrides,
            }
        )
        command = (*settings.worker_command, str(made), str(request.steps))
        settings = dataclasses.replace(settings, worker_command=command)
        status = run_trial(store, chosen, settings)
        text = untrusted.read_text(made)
        if status.status is not TrialStatus.OK or text is None:
            reason = status.failure.reason if status.failure else status.status.value
            click.echo(f"nothing was recorded: {reason}", err=True)
            return exit_codes.SOME_TRIALS_FAILED
    output_file.write(path, text, what="timeline")
    document = json.loads(text)
    kept = timeline.record(document, planned.case_id, time_of_day.now_text())
    _print(request, chosen, path, timeline.summary(document), kept)
    if request.is_kept:
        where = study.write_timeline(kept)
        click.echo(f"kept: {where} (`report {plan.study}` draws it)", err=True)
    return exit_codes.OK


def choose(plan: Plan, case: str | None) -> PlannedTrial:
    """Returns the trial to run again.

    Raises:
      PlanError: No such case, or one that cannot be recorded.
    """
    able = [
        trial
        for trial in plan.trials
        if "timelines" not in catalog.backend(trial.spec.backend).lacks
        and trial.spec.control is Control.NONE
        and trial.spec.budget is None
        and not trial.spec.revision
        and trial.spec.device == "cpu"
    ]
    if case is not None:
        named = [t for t in able if _is_named(t, case)]
    else:
        most = max((trial.spec.num_replicas for trial in able), default=0)
        named = [t for t in able if t.spec.num_replicas == most]
    if not named:
        known = dict.fromkeys(f"{_name(t)} ({t.case_id[:8]})" for t in able)
        raise PlanError(
            f"study {plan.study!r} has no case {case or 'at all'!r} that can be"
            f" recorded: on CPUs, of a backend with timelines; it has"
            f" {', '.join(known) or 'none'}"
        )
    return named[0]


def alone(trial: PlannedTrial) -> PlannedTrial:
    """Returns a trial without the others of its relay, and without its evaluation."""
    spec = trial.spec.model_copy(
        update={
            "order": Order.SEQUENTIAL,
            "is_evaluated": False,
            # A relay has no number of its own.
            "num_measured_steps": trial.spec.num_measured_steps or _WINDOW,
        }
    )
    ids = {"trial_id": identity.trial_id(spec), "case_id": identity.case_id(spec)}
    return trial.model_copy(update={"spec": spec, **ids})


def _name(trial: PlannedTrial) -> str:
    return f"{trial.spec.backend} x{trial.spec.num_replicas}"


def _is_named(trial: PlannedTrial, case: str) -> bool:
    return case == _name(trial) or (bool(case) and trial.case_id.startswith(case))


def _print(
    request: TraceRequest,
    trial: PlannedTrial,
    path: Path,
    found: Mapping[str, Any],
    kept: Timeline,
) -> None:
    pipelines = timeline.tasks(kept)
    if pipelines:
        shares = [
            map(timeline.idle_share, (of, timeline.planned(of)))
            for of in pipelines.values()
        ]
        idle, bubble = (statistics.fmean(of) for of in zip(*shares, strict=True))
        found = {**found, "idle_share": idle, "bubble": bubble}
    if request.is_json:
        click.echo(json.dumps({"path": str(path), **found}, indent=2))
        return
    click.echo(f"{progress.describe_trial(trial)}: {found['num_steps']} steps recorded")
    click.echo(
        f"step {found['step_sec'] * 1e3:.1f} ms, of which communication that hides"
        f" behind nothing {found['communication_share']:.0%}"
    )
    if pipelines:
        click.echo(
            f"pipeline: devices are idle {found['idle_share']:.1%} of its time, with"
            f" tasks of equal length {found['bubble']:.1%}"
        )
    click.echo(
        f"marks: {found['cost']:.2f} x the step without them; clocks known to"
        f" {found['clock_bound_sec'] * 1e3:.2f} ms"
    )
    click.echo(f"trace: {path} (opens in ui.perfetto.dev or chrome://tracing)")
