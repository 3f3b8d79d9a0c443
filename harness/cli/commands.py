"""Implements the verbs; each returns the exit code of the process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from harness.cli import exit_codes, gpu_readiness, hosts, progress, running
from harness.cli.host_options import HostRequest
from harness.errors import DoesNotFitError, StudyError
from harness.machine import topology
from harness.planning import design, estimate, shards
from harness.planning import plan as plan_module
from harness.planning import study as study_module
from harness.run import sweep as run
from harness.run import trial_runner
from harness.run.trial_runner import RunSettings
from results.records.models import Order, PlannedTrial
from results.store import atomic, untrusted
from results.store.lock import lock_study
from results.store.study_store import TRIALS_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.cli.running import Conclude
    from harness.planning.plan import PlannedSweep
    from harness.planning.request import SweepRequest
    from harness.planning.source_tree import SourceTree
    from results.records.models import Plan


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
    on_hosts: HostRequest | None = None,
    command: Sequence[str] | None = None,
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
      on_hosts: Where processes run; by default on this machine.
      command: The command to record; by default that of this process.

    Raises:
      HarnessError: The request cannot be carried out; nothing was written.
      ResultsError: The study directory cannot be used; nothing was written.
    """
    if study is not None:
        study_module.check_name(study)
    _check_runs_dir(runs_dir)
    on_hosts = on_hosts or HostRequest()
    command = command or ("python", "-m", "harness", *sys.argv[1:])
    launcher = hosts.launcher_of(on_hosts)
    request = hosts.with_hosts(request, launcher)
    cpus = topology.read_topology()
    machine = hosts.machine_of(on_hosts, launcher, request, cpus)
    planned = plan_module.plan_sweep(request, machine)
    (check or _accept)(planned)
    hosts.check_product(on_hosts, planned)
    name = study or name_prefix + study_module.default_name(planned)
    is_submitted = on_hosts.info.is_submitted()
    if is_submitted and not is_dry_run:
        return hosts.submit(
            on_hosts, launcher, planned, study=name, runs_dir=runs_dir, command=command
        )
    if not is_submitted:  # a login node has no GPUs of the job
        gpu_readiness.check_models(planned.trials, launcher.num_hosts)
    name = shards.name(name, on_hosts.shard)
    root = runs_dir / name
    known = study_module.read_existing_plan(root)
    is_order_free = request.order is None
    if is_order_free and known and known.measuring.order is not planned.measuring.order:
        # It was decided when the study began, maybe by the memory that was free.
        planned = plan_module.in_order(planned.checked, known.measuring.order)
    planned = shards.own(planned, on_hosts.shard)
    new = study_module.make_plan(
        planned,
        request,
        study=name,
        command=command,
    )
    measured = Store(root) if known is not None else None
    reconciled = study_module.reconcile(known, new, request.baseline, measured)
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
    launcher.check_folder(runs_dir.absolute())
    conclude = conclude or functools.partial(running.conclude_sweep, is_json=is_json)
    missing = _missing(root, reconciled.asked, is_failed_retried=is_failed_retried)
    with (
        gpu_readiness.ready(
            missing,
            overrides,
            None if is_failed_retried else runs_dir,
            study=name,
            num_hosts=launcher.num_hosts,
        ) as replaced,
        _created_and_locked(root) as store,
    ):
        # Read it again under the lock: another harness may just have written it.
        existing = study_module.read_existing_plan(root)
        reconciled = study_module.reconcile(existing, new, request.baseline, store)
        if reconciled.is_changed:
            store.write_plan(reconciled.plan)
        for note in notes:
            running.note(note)
        settings = RunSettings(
            timeout_sec=request.timeout_sec,
            topology=cpus,
            is_failed_retried=is_failed_retried,
            are_checkpoints_kept=are_checkpoints_kept,
            data_dir=reconciled.plan.data_dir,
            measuring=reconciled.plan.measuring,
            trees=_trees(request),
            launcher=launcher,
            **replaced,
        )
        try:
            return running.run_until_done(
                store, reconciled.asked, settings, runs_dir, conclude
            )
        except DoesNotFitError as error:
            if (
                not is_order_free
                or design.needs_relay(request)
                or _is_any_finished(store)
            ):
                fewer = "--controls, " * bool(request.controls)
                raise DoesNotFitError(
                    f"{error}; free some memory, or use --order sequential, or fewer"
                    f" {fewer}--mode, --backends or --replicas"
                ) from error
            running.note(f"{error}: the trials run in sequence instead")
            planned = plan_module.in_order(planned.checked, Order.SEQUENTIAL)
            planned = shards.own(planned, on_hosts.shard)
            plan = study_module.make_plan(planned, request, study=name, command=command)
            return _run_in_sequence(store, plan, settings, conclude)


@contextlib.contextmanager
def _created_and_locked(root: Path) -> Iterator[Store]:
    store = Store.create(root)
    with lock_study(root):
        yield store


def _run_in_sequence(
    store: Store, plan: Plan, settings: RunSettings, conclude: Conclude
) -> int:
    """Replaces the plan of a relay, of which nothing was measured, by a sequence."""
    for trial in store.read_plan().trials:
        trial_runner.clean_trial_dir(store.trial_dir(trial.trial_id))
    store.write_plan(plan)
    settings = dataclasses.replace(settings, measuring=plan.measuring)
    return running.run_until_done(
        store, plan.trials, settings, store.root.parent, conclude
    )


def _accept(_planned: PlannedSweep) -> None:
    """Any plan can be run."""


def _trees(request: SweepRequest) -> dict[str, SourceTree]:
    baseline = request.baseline
    return {} if baseline is None else {baseline.revision: baseline}


def _is_any_finished(store: Store) -> bool:
    return any(trial.status is not None for trial in store.trials())


def _missing(
    root: Path, asked: Sequence[PlannedTrial], *, is_failed_retried: bool = False
) -> list[PlannedTrial]:
    """Returns the trials that are to run, of a study that may not exist yet."""
    if not untrusted.is_there(root / TRIALS_NAME):
        return list(asked)
    return run.missing_trials(Store(root), asked, is_failed_retried=is_failed_retried)


def _print_plan(
    plan: Plan,
    asked: Sequence[PlannedTrial],
    notes: Sequence[str],
    *,
    root: Path,
    runs_dir: Path,
    is_json: bool,
) -> int:
    missing = _missing(root, asked)
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
        running.note(note)
    cases = len({trial.case_id for trial in asked})
    click.echo(
        f"{root}: {len(asked)} trials of {cases} cases, {len(missing)} to run,"
        f" about {estimate.format_duration(guess.total_sec)} ({guess.basis})"
    )
    return exit_codes.OK
