"""Implements the verbs; each returns the exit code of the process."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from harness.cli import exit_codes, progress, study_status
from harness.errors import DoesNotFitError, Interrupted, StudyError
from harness.machine import gpus, topology
from harness.planning import estimate, extend
from harness.planning import plan as plan_module
from harness.planning import study as study_module
from harness.run import sweep as run
from harness.run import trial_runner
from harness.run.trial_runner import RunSettings
from results import atomic, relay, variables
from results.lock import lock_study
from results.records import Order, PlannedTrial, TrialStatus
from results.store import Store
from results.study import load_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from harness.planning.plan import PlannedSweep
    from harness.planning.request import SweepRequest
    from harness.planning.source_tree import SourceTree
    from results.records import Plan

    # Receives the study and the trials that were requested; returns the exit code.
    Conclude = Callable[[Store, Sequence[PlannedTrial]], int]

PIPE_WIDTH = 140


def _note(text: str) -> None:
    click.echo(text, err=True)


def _check_runs_dir(runs_dir: Path) -> None:
    atomic.check_reachable(runs_dir)
    for path in (runs_dir, *runs_dir.absolute().parents):
        if path.exists() and not path.is_dir():
            raise StudyError(
                f"--runs-dir {str(runs_dir)!r}: {str(path)!r} is a file, but a"
                " directory is needed; choose another --runs-dir"
            )


def sweep(
    request: SweepRequest,
    *,
    study: str | None,
    runs_dir: Path,
    is_json: bool,
    is_dry_run: bool,
    is_failed_retried: bool = False,
    are_checkpoints_kept: bool = False,
    overrides: Mapping[str, Any] | None = None,
    conclude: Conclude | None = None,
    name_prefix: str = "",
    check: Callable[[PlannedSweep], None] | None = None,
) -> int:
    """Plans, and unless it is a dry run, runs what is missing and reports.

    Args:
      request: What to measure.
      study: Its name; by default derived from the request.
      runs_dir: Directory of the studies.
      is_json: Whether data is printed as JSON.
      is_dry_run: Whether nothing is run and written.
      is_failed_retried: Whether recorded failures are run again.
      are_checkpoints_kept: Whether completed quality runs keep their last checkpoint.
      overrides: Replaces fields of ``RunSettings``.
      conclude: Shows what was measured and returns the exit code; by default the
        report and summary of a sweep.
      name_prefix: Of a name that is derived from the request.
      check: Receives the plan before anything is written; raises if it cannot be used.

    Raises:
      HarnessError: The request cannot be carried out; nothing was written.
      ResultsError: The study directory cannot be used; nothing was written.
    """
    if study is not None:
        study_module.check_name(study)
    _check_runs_dir(runs_dir)
    cpus = topology.read_topology()
    num_gpus = len(gpus.visible_gpus()) if request.device == "gpu" else None
    machine = plan_module.Machine(
        num_available_cores=cpus.num_available_cores,
        num_gpus=num_gpus,
        variables=variables.identity_variables(os.environ),
    )
    planned = plan_module.plan_sweep(request, machine)
    (check or _accept)(planned)
    name = study or name_prefix + study_module.default_name(planned)
    root = runs_dir / name
    known = study_module.read_existing_plan(root)
    is_order_free = request.order is None
    if is_order_free and known is not None:
        # It was decided when the study began, maybe by the memory that was free.
        request = dataclasses.replace(request, order=known.measuring.order)
        planned = plan_module.plan_sweep(request, machine)
    new = study_module.make_plan(
        planned, request, study=name, command=("python", "-m", "harness", *sys.argv[1:])
    )
    reconciled = study_module.reconcile(known, new, request.baseline)
    notes = [*planned.notes, *([reconciled.note] if reconciled.note else [])]
    if is_dry_run:
        return _print_plan(
            reconciled.plan,
            reconciled.asked,
            notes,
            root=root,
            runs_dir=runs_dir,
            is_json=is_json,
        )
    conclude = conclude or functools.partial(_conclude_sweep, is_json=is_json)
    store = Store.create(root)
    with lock_study(root):
        # Read it again under the lock: another harness may just have written it.
        existing = study_module.read_existing_plan(root)
        reconciled = study_module.reconcile(existing, new, request.baseline)
        _check_readable(store)
        if reconciled.is_changed:
            store.write_plan(reconciled.plan)
        for note in notes:
            _note(note)
        settings = RunSettings(
            timeout_sec=request.timeout_sec,
            topology=cpus,
            is_failed_retried=is_failed_retried,
            are_checkpoints_kept=are_checkpoints_kept,
            data_dir=reconciled.plan.data_dir,
            measuring=reconciled.plan.measuring,
            trees=_trees(request),
            **(overrides or {}),
        )
        try:
            return _run(store, reconciled.asked, settings, runs_dir, conclude)
        except DoesNotFitError as error:
            if not is_order_free or _is_any_finished(store):
                raise DoesNotFitError(
                    f"{error}; free some memory, or use --order sequential, fewer"
                    " --backends or fewer --replicas"
                ) from error
            _note(f"{error}: the trials run in sequence instead")
            request = dataclasses.replace(request, order=Order.SEQUENTIAL)
            planned = plan_module.plan_sweep(request, machine)
            plan = study_module.make_plan(
                planned, request, study=name, command=new.command
            )
            for trial in reconciled.plan.trials:
                trial_runner.clean_trial_dir(store.trial_dir(trial.trial_id))
            store.write_plan(plan)
            settings = dataclasses.replace(settings, measuring=plan.measuring)
            return _run(store, plan.trials, settings, runs_dir, conclude)


def _accept(_planned: PlannedSweep) -> None:
    """Any plan can be run."""


def _trees(request: SweepRequest) -> dict[str, SourceTree]:
    baseline = request.baseline
    return {} if baseline is None else {baseline.revision: baseline}


def resume(
    study: str,
    *,
    runs_dir: Path,
    is_json: bool,
    timeout_sec: float | None = None,
    is_failed_retried: bool = False,
    are_checkpoints_kept: bool = False,
    data_dir: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> int:
    """Runs the missing trials of a study's plan.

    Raises:
      HarnessError: The study's code is not the code that would run now.
      ResultsError: There is no such study, or it cannot be used.
    """
    root = study_module.find_study(study, runs_dir)
    store = Store.open(root)
    plan = store.read_plan()
    study_module.check_trials(plan)
    study_module.check_code(plan)
    with lock_study(root):
        _check_readable(store)
        settings = RunSettings(
            timeout_sec=timeout_sec or plan.timeout_sec,
            is_failed_retried=is_failed_retried,
            are_checkpoints_kept=are_checkpoints_kept,
            data_dir=plan.data_dir if data_dir is None else str(data_dir.absolute()),
            measuring=plan.measuring,
            **(overrides or {}),
        )
        conclude = functools.partial(_conclude_sweep, is_json=is_json)
        return _run(store, plan.trials, settings, root.parent, conclude)


def _check_readable(store: Store) -> None:
    """Checks that all records of a study can be read before trials are added to it.

    Raises:
      StudyError: A record is corrupt; names the first one and says what to do.
    """
    problems = store.corrupt()
    if problems:
        first, more = problems[0], len(problems) - 1
        others = f" (and {more} more, see 'status')" if more else ""
        raise StudyError(
            f"corrupt record {str(first.path)!r}: {first.reason}{others}; the other"
            " records stay readable; remove the trial's directory to run it again"
        )


def _run(
    store: Store,
    trials: Sequence[PlannedTrial],
    settings: RunSettings,
    runs_dir: Path,
    conclude: Conclude,
) -> int:
    durations = estimate.read_durations(runs_dir)
    try:
        with run.stop_signals():
            run.run_trials(store, trials, settings, progress.make_progress(), durations)
            while not _is_done(store):
                plan = extend.with_next_generation(store.read_plan())
                store.write_plan(plan)
                trials = plan.trials
                run.run_trials(
                    store, trials, settings, progress.make_progress(), durations
                )
    except Interrupted as error:
        _note(f"interrupted ({error.signal_name}); finished trials are kept")
        _note(f"resume with: {_resume_command(store, settings)}")
        return exit_codes.INTERRUPTED
    return conclude(store, trials)


def _resume_command(store: Store, settings: RunSettings) -> str:
    if settings.trees:  # only the same command knows the other revision
        return shlex.join(["python", "-m", "harness", *sys.argv[1:]])
    return shlex.join(["python", "-m", "harness", "resume", str(store.root)])


def _conclude_sweep(
    store: Store, trials: Sequence[PlannedTrial], *, is_json: bool
) -> int:
    """Writes the report, prints the summary, and returns the exit code."""
    _conclude(store, is_json=is_json)
    statuses = _statuses(store, [trial.trial_id for trial in trials])
    num_failed = len(statuses) - statuses.count(TrialStatus.OK)
    if num_failed:
        _note(
            f"{num_failed} of {len(statuses)} trials are not ok: see"
            f" 'status {store.root}'; --retry failed runs them again"
        )
    code = exit_code(statuses)
    if code == exit_codes.OK:
        counts = relay.count_turns(load_study(store))
        if counts.is_unfit:
            _note(
                f"{counts.num_void} of {counts.num_turns} turns are void"
                f" ({counts.reasons[0][0]}): no verdict; repeat the sweep on a quiet"
                " machine"
            )
            return exit_codes.UNFIT
    return code


def _is_any_finished(store: Store) -> bool:
    return any(trial.status is not None for trial in store.trials())


def _is_done(store: Store) -> bool:
    """Whether a relay has reached its target, or has used its time."""
    study = load_study(store)
    measuring = study.plan.measuring
    if measuring.target is None or measuring.minutes is None:
        return True
    if relay.is_precise_enough(study):
        return True
    if not any(entry.is_ok for entry in study.planned):
        return True
    used_sec = sum(
        entry.trial.status.duration_sec
        for entry in study.planned
        if entry.spec.order is Order.RELAY
        and entry.trial is not None
        and entry.trial.status is not None
    )
    generation_sec = used_sec / study.plan.repeats
    is_time_over = used_sec + generation_sec > measuring.minutes * 60
    if is_time_over:
        _note(
            f"the target of {measuring.target:.2%} is not reached after"
            f" {study.plan.repeats} generations and {used_sec / 60:.1f} min: give more"
            " --minutes to continue"
        )
    return is_time_over


def _statuses(store: Store, trial_ids: Iterable[str]) -> list[TrialStatus | None]:
    found = {
        trial.trial_id: trial.status.status
        for trial in store.trials()
        if trial.status is not None
    }
    return [found.get(trial_id) for trial_id in trial_ids]


def exit_code(statuses: Sequence[TrialStatus | None]) -> int:
    """Returns the exit code for the results of the requested trials."""
    num_ok = statuses.count(TrialStatus.OK)
    if num_ok == 0:
        return exit_codes.NOTHING_MEASURED
    return exit_codes.OK if num_ok == len(statuses) else exit_codes.SOME_TRIALS_FAILED


def _conclude(store: Store, *, is_json: bool) -> None:
    from reports import build

    build.write_report(store, store.report_path)
    _print_summary(store, is_json=is_json)
    _note(f"report: {store.report_path}")


def _print_summary(store: Store, *, is_json: bool) -> None:
    if is_json:
        from results.summary import summary

        click.echo(json.dumps(summary(store), indent=2))
    else:
        from rich.console import Console

        from reports import text

        # A pipe has no width: choose one in which no cell is wrapped.
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        text.print_summary(store, Console(width=width, highlight=False))


def report(study: str, *, runs_dir: Path, output: Path | None, is_json: bool) -> int:
    """Builds the report; corrupt records are named and left out.

    Raises:
      ResultsError: There is no such study, or the output cannot be written.
    """
    from reports import build

    store = Store.open(study_module.find_study(study, runs_dir))
    store.read_plan()
    path = output or store.report_path
    if path.is_dir():
        path /= "index.html"
    build.write_report(store, path)
    if is_json:
        _print_summary(store, is_json=True)
        _note(f"report: {path}")
    else:
        click.echo(str(path))
    return study_status.name_problems(store)


def _print_plan(
    plan: Plan,
    asked: Sequence[PlannedTrial],
    notes: Sequence[str],
    *,
    root: Path,
    runs_dir: Path,
    is_json: bool,
) -> int:
    missing = list(asked)
    if (root / "trials").is_dir():
        missing = run.missing_trials(Store(root), asked, is_failed_retried=False)
    guess = estimate.estimate(missing, estimate.read_durations(runs_dir))
    if is_json:
        data = plan.model_dump(mode="json")
        data["num_missing"] = len(missing)
        data["estimated_sec"] = guess.total_sec
        data["estimate_basis"] = guess.basis
        click.echo(json.dumps(data, indent=2))
        return exit_codes.OK
    lines = [
        f"{number:>4}  {trial.trial_id[:8]}  {progress.describe_trial(trial)}"
        for number, trial in enumerate(asked, start=1)
    ]
    click.echo("\n".join(lines))
    for note in notes:
        _note(note)
    cases = len({trial.case_id for trial in asked})
    click.echo(
        f"{root}: {len(asked)} trials of {cases} cases, {len(missing)} to run,"
        f" about {estimate.format_duration(guess.total_sec)} ({guess.basis})"
    )
    return exit_codes.OK
