"""Implements the verbs; each returns the exit code of the process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from typing import TYPE_CHECKING

import click

from harness import catalog
from harness.cli import exit_codes, gpu_readiness, hosts, progress, running
from harness.command import peers
from harness.errors import DoesNotFitError, StudyError
from harness.launch import catalog as launchers
from harness.machine import machine_state
from harness.planning import design, estimate
from harness.planning import plan as plan_module
from harness.planning import study as study_module
from harness.planning.checked import check as check_request
from harness.run import sweep as run
from harness.run import trial_tree
from harness.run.trial_runner import RunSettings
from harness.sources.code_digest import CodeWatch
from results.records.models import Order, PlannedTrial
from results.store import atomic, untrusted
from results.store.lock import lock_study
from results.store.study_store import TRIALS_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.cli.running import Conclude
    from harness.cli.verb import Call
    from harness.cli.verbs.sweep_verb import RunRequest
    from harness.planning.plan import PlannedSweep
    from harness.planning.request import SweepRequest
    from harness.sources.code_digest import SourceTree
    from results.records.models import Plan


def _check_runs_dir(runs_dir: Path) -> None:
    atomic.check_reachable(runs_dir)
    for path in (runs_dir, *runs_dir.absolute().parents):
        if path.exists() and not path.is_dir():
            raise StudyError(
                f"--runs-dir {str(runs_dir)!r}: {str(path)!r} is a file, but a"
                " directory is needed; choose another --runs-dir"
            )


def planned_name(request: RunRequest) -> str:
    """Returns the default name of a study that can be planned here."""
    _check_runs_dir(request.runs_dir)
    launcher = hosts.launcher_of(request)
    request = hosts.with_hosts(request, launcher)
    machine = hosts.machine_of(request, launcher, machine_state.read_topology())
    return study_module.default_name(check_request(request, machine))


def sweep(
    request: RunRequest,
    call: Call,
    *,
    conclude: Conclude | None = None,
    name_prefix: str = "",
    check: Callable[[PlannedSweep], None] | None = None,
) -> int:
    """Plans, and unless it is a dry run, runs what is missing and reports."""
    runs_dir, is_failed_retried = request.runs_dir, request.retry is not None
    if request.study is not None:
        study_module.check_name(request.study)
    _check_runs_dir(runs_dir)
    launcher = hosts.launcher_of(request)
    request = hosts.with_hosts(request, launcher)
    cpus = machine_state.read_topology()
    machine = hosts.machine_of(request, launcher, cpus)
    checked = check_request(request, machine)
    name = request.study or name_prefix + study_module.default_name(checked)
    root = runs_dir / name
    known = study_module.read_existing_plan(root)
    is_order_free = request.order is None
    # It was decided when the study began, maybe by the memory that was free.
    order = known.measuring.order if is_order_free and known else None
    planned = plan_module.arrange(checked, order)
    if check is not None:
        check(planned)
    hosts.check_product(request, planned)
    is_submitted = request.info.is_submitted()
    if is_submitted and not request.is_dry_run:
        return hosts.submit(
            request, launcher, planned, study=name, command=call.command
        )
    if not is_submitted:  # a login node has no GPUs of the job
        gpu_readiness.check_models(planned.trials, launcher.num_hosts)
    new = study_module.make_plan(
        planned,
        request,
        study=name,
        command=call.command,
        launcher=request.launcher,
    )
    measured = Store(root) if known is not None else None
    reconciled = plan_module.reconcile(known, new, request.baseline, measured)
    notes = [*planned.notes, *([reconciled.note] if reconciled.note else [])]
    if request.is_dry_run:
        return _print_plan(
            reconciled.plan,
            reconciled.asked,
            notes,
            root=root,
            runs_dir=runs_dir,
            is_json=request.is_json,
            memory=_memory(reconciled.asked),
        )
    launcher.check_folder(runs_dir.absolute())
    peers.check_environments(planned.trials, launcher.name, launchers.DEFAULT)
    conclude = conclude or functools.partial(
        running.conclude_sweep, is_json=request.is_json
    )
    missing = _missing(root, reconciled.asked, is_failed_retried=is_failed_retried)
    with (
        gpu_readiness.ready(
            missing,
            call.overrides,
            None if is_failed_retried else runs_dir,
            study=name,
            num_hosts=launcher.num_hosts,
        ) as replaced,
        _created_and_locked(root) as store,
    ):
        # Read it again under the lock: another harness may just have written it.
        existing = study_module.read_existing_plan(root)
        reconciled = plan_module.reconcile(existing, new, request.baseline, store)
        if reconciled.is_changed:
            store.write_plan(reconciled.plan)
        for note in notes:
            running.note(note)
        settings = RunSettings(
            timeout_sec=request.timeout_sec,
            topology=cpus,
            is_failed_retried=is_failed_retried,
            data_dir=reconciled.plan.data_dir,
            measuring=reconciled.plan.measuring,
            trees=_trees(request),
            folders=request.folders,
            launcher=launcher,
            changed_code=CodeWatch(
                reconciled.plan, folders=request.folders, left_out=[runs_dir, root]
            ).changed,
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
            planned = plan_module.arrange(checked, Order.SEQUENTIAL)
            plan = study_module.make_plan(
                planned,
                request,
                study=name,
                command=call.command,
                launcher=request.launcher,
            )
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
        trial_tree.clear_trials(store.trial_dir(trial.trial_id), store.list_earlier)
    store.write_plan(plan)
    settings = dataclasses.replace(settings, measuring=plan.measuring)
    return running.run_until_done(
        store, plan.trials, settings, store.root.parent, conclude
    )


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


def _matching_in_turn(root: Path, plan: Plan) -> list[PlannedTrial]:
    """Returns the untimed trials that are to run one after the other: on GPUs."""
    trials = plan.matching.trials if plan.matching is not None else ()
    if not trials or trials[0].spec.device != "gpu":
        return []
    return _missing(Store(root).matching.root, trials)


def _memory(trials: Sequence[PlannedTrial]) -> dict[int, list[str]]:
    """Returns what variables take of a device, by replicas, where they are counted.

    Of replicas with memories of their own; those on the cores of a machine share one
    copy of the variables.
    """
    specs = {trial.spec.num_replicas: trial.spec for trial in trials}
    return {
        num_replicas: catalog.memory_table(
            catalog.workload(spec.workload),
            spec.preset,
            spec.options,
            num_replicas=num_replicas,
        )
        for num_replicas, spec in sorted(specs.items())
        if spec.program is None and catalog.workload(spec.workload).memory_module
    }


def _print_plan(
    plan: Plan,
    asked: Sequence[PlannedTrial],
    notes: Sequence[str],
    *,
    root: Path,
    runs_dir: Path,
    is_json: bool,
    memory: Mapping[int, Sequence[str]],
) -> int:
    missing = _missing(root, asked)
    asked_for = [*_matching_in_turn(root, plan), *missing]
    durations = estimate.read_durations(runs_dir)
    guess = estimate.estimate(asked_for, durations, plan.measuring)
    if is_json:
        data = plan.model_dump(mode="json")
        data["num_missing"] = len(missing)
        data["estimated_sec"] = guess.total_sec
        data["estimated_most_sec"] = guess.most_sec
        data["estimate_basis"] = guess.basis
        if memory:
            data["memory"] = memory
        click.echo(json.dumps(data, indent=2))
        return exit_codes.OK
    lines = [
        f"{number:>4}  {trial.trial_id[:8]}  {progress.describe_trial(trial)}"
        for number, trial in enumerate(asked, start=1)
    ]
    click.echo("\n".join(lines))
    for num_replicas, table in memory.items():
        click.echo("\n".join([f"x{num_replicas}: {table[0]}", *table[1:]]))
    for note in notes:
        running.note(note)
    cases = len({trial.case_id for trial in asked})
    click.echo(
        f"{root}: {len(asked)} trials of {cases} cases, {len(missing)} to run,"
        f" {guess.text}"
    )
    return exit_codes.OK
