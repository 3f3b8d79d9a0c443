"""Implements the verbs; each returns the exit code of the process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from harness import catalog
from harness.cli import exit_codes, running
from harness.command import peers
from harness.doctor import gpu as gpu_lib
from harness.errors import DoesNotFitError, PlanError, StudyError, UnfitMachineError
from harness.launch import launchers
from harness.launch.launchers import Job
from harness.machine import allocation, gpu_watch, gpus, machine_state
from harness.planning import design, estimate
from harness.planning import plan as plan_module
from harness.planning import study as study_module
from harness.planning.checked import Machine
from harness.planning.checked import check as check_request
from harness.run import sweep as run
from harness.run import trial_tree
from harness.run.trial_runner import RunSettings
from harness.sources.code_digest import CodeWatch
from harness.trial import gpu_probe
from results.records import program
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
    from harness.doctor.gpu import GpuState
    from harness.launch.launchers import Launcher
    from harness.machine.gpus import Gpu
    from harness.machine.machine_state import CpuTopology
    from harness.planning.checked import CheckedSweep
    from harness.trial.gpu_probe import Probe
    from results.records.models import Plan


HARNESS_COMMAND = (sys.executable, "-m", "harness")  # The harness, as a job starts it.


def submit(
    request: RunRequest,
    launcher: Launcher,
    planned: Plan,
    *,
    study: str,
    command: Sequence[str],
) -> int:
    """Submits a job that runs the sweep by the same command, and prints its id."""
    specs = [trial.spec for trial in planned.trials]
    per_worker = request.replicas_per_worker
    workers, gpus_per_worker = launcher.num_hosts, 0
    if any(spec.device == "gpu" for spec in specs):
        replicas = max(spec.num_replicas for spec in specs)
        workers, gpus_per_worker = -(-replicas // per_worker), per_worker
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in study.lower())
    arguments = study_module.without(command[command.index("harness") + 1 :], "--study")
    job = Job(
        name=name[:53].strip("-") or "sweep",
        command=(*HARNESS_COMMAND, *arguments, "--study", study),
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        directory=os.getcwd(),  # noqa: PTH109 (as a string)
    )
    submitted = request.info.submit(job, request.launcher_options, request.runs_dir)
    click.echo(submitted.number)
    click.echo(
        f"submitted job {submitted.number}; follow it with {submitted.follow}; its"
        f" study is {request.runs_dir / study}; {submitted.end} ends it, and the same"
        " command continues it",
        err=True,
    )
    return exit_codes.OK


@contextlib.contextmanager
def ready(
    missing: Sequence[PlannedTrial],
    overrides: Mapping[str, Any] | None,
    runs_dir: Path | None = None,
    *,
    study: str,
    num_hosts: int = 1,
) -> Iterator[dict[str, Any]]:
    """Checks all that can be checked before the missing trials of a study are run.

    While the ``with`` block runs, no other sweep of this machine gets their GPUs.
    """
    replaced = dict(overrides or {})
    probe = replaced.pop("probe", gpu_probe.probe)
    chosen = check_models(missing, num_hosts)
    if chosen and runs_dir is not None:
        estimate.check_memory(missing, runs_dir, study=study, gpu=chosen[0].name)
    with gpu_watch.hold_gpus(chosen, study=study):
        has_tensorflow = any(trial.spec.program is None for trial in missing)
        check_ready(chosen, probe if has_tensorflow else None)
        yield replaced


def check_models(trials: Sequence[PlannedTrial], num_hosts: int = 1) -> tuple[Gpu, ...]:
    """The GPUs of the largest trial on this host; none where all run on CPUs."""
    counts = [t.spec.num_replicas for t in trials if t.spec.device == "gpu"]
    if not counts:
        return ()
    return gpus.choose(gpus.visible_gpus(), -(-max(counts) // num_hosts))


def check_ready(chosen: Sequence[Gpu], probe: Probe | None) -> None:
    """Checks that nobody else uses the GPUs, and that TensorFlow can use them."""
    if not chosen:
        return
    for state in gpu_lib.read_gpu_states(chosen):
        if state.fault:
            raise UnfitMachineError(
                f"GPU {state.index} ({state.name}) cannot be read ({state.fault}), so"
                " it is unknown who uses it; reset it (sudo nvidia-smi --gpu-reset), or"
                " hide it with CUDA_VISIBLE_DEVICES"
            )
        if state.is_busy:
            raise UnfitMachineError(_busy(state, chosen))
    if probe is None:
        return
    ids = [gpu.cuda_id for gpu in chosen]
    try:
        gpu_probe.check(probe(ids), ids)
    except gpu_probe.MissingGpuError as error:
        raise UnfitMachineError(str(error)) from error


def _busy(state: GpuState, chosen: Sequence[Gpu]) -> str:
    others = [gpu.cuda_id for gpu in chosen if gpu.index != state.index]
    without = f", or leave it out: CUDA_VISIBLE_DEVICES={','.join(others)}"
    used = f"{state.utilization or 0:.0%} busy".replace("%", " %")
    if state.num_users:
        plural = "" if state.num_users == 1 else "es"
        used = f"used by {state.num_users} other process{plural}"
    return (
        f"GPU {state.index} ({state.name}) is {used}, but a trial needs its GPUs for"
        f" itself; end the others ('nvidia-smi' lists them){without if others else ''}"
    )


def _checked(
    request: RunRequest,
) -> tuple[RunRequest, Launcher, CpuTopology, CheckedSweep]:
    """Returns a request that can be carried out on the hosts, and what it needs."""
    atomic.check_reachable(request.runs_dir)
    for path in (request.runs_dir, *request.runs_dir.absolute().parents):
        if path.exists() and not path.is_dir():
            raise StudyError(
                f"--runs-dir {str(request.runs_dir)!r}: {str(path)!r} is a file, but a"
                " directory is needed; choose another --runs-dir"
            )
    info = request.info
    make = info.plan if info.is_submitted() else info.start
    launcher = launchers.by_hosts(make(request.launcher_options))
    if launcher.num_hosts > 1:
        if request.order is Order.RELAY:
            raise PlanError(
                f"--order interleaved on {launcher.num_hosts} hosts: blocks are judged "
                "by the load of one machine; use --order sequential, or --nodes 1"
            )
        request = request.model_copy(update={"order": Order.SEQUENTIAL})
    cpus = machine_state.read_topology()
    # All hosts together, which are like this one.
    machine = Machine(
        num_available_cores=cpus.num_available_cores * launcher.num_hosts,
        num_gpus=_num_gpus(request, launcher) if request.device == "gpu" else None,
        variables=launcher.identity()
        | allocation.share_identity(request.replicas_per_worker)
        | allocation.with_gpu_threads(
            program.identity_variables(os.environ), request.device
        ),
    )
    return request, launcher, cpus, check_request(request, machine)


def _num_gpus(request: RunRequest, launcher: Launcher) -> int:
    if not request.info.is_submitted():
        return len(gpus.visible_gpus()) * launcher.num_hosts
    if request.replicas is None:
        raise PlanError(
            f"--device gpu with --launcher {request.info.name}: the GPUs of the job are"
            " unknown before it starts; give --replicas"
        )
    return max(request.replicas)


def planned_name(request: RunRequest) -> str:
    """Returns the default name of a study that can be planned here."""
    return study_module.default_name(_checked(request)[-1])


def sweep(
    request: RunRequest,
    call: Call,
    *,
    conclude: Conclude | None = None,
    name_prefix: str = "",
    check: Callable[[Plan], object] = lambda _: None,
) -> int:
    """Plans, and unless it is a dry run, runs what is missing and reports."""
    runs_dir, is_failed_retried = request.runs_dir, request.retry is not None
    if request.study is not None:
        study_module.check_name(request.study)
    request, launcher, cpus, checked = _checked(request)
    name = request.study or name_prefix + study_module.default_name(checked)
    root = runs_dir / name
    known = study_module.read_existing_plan(root)
    is_order_free = request.order is None
    # It was decided when the study began, maybe by the memory that was free.
    order = known.measuring.order if is_order_free and known else None
    arrange = functools.partial(
        plan_module.arrange,
        checked,
        study=name,
        command=call.command,
        launcher=request.launcher,
    )
    new, notes = arrange(order)
    check(new)
    is_submitted = request.info.is_submitted()
    if is_submitted and not request.is_dry_run:
        return submit(request, launcher, new, study=name, command=call.command)
    if not is_submitted:  # a login node has no GPUs of the job
        check_models(new.trials, launcher.num_hosts)
    measured = Store(root) if known is not None else None
    plan, asked, note = plan_module.reconcile(known, new, request.baseline, measured)
    notes += [note] * bool(note)
    if request.is_dry_run:
        return _print_plan(
            plan,
            asked,
            notes,
            root=root,
            runs_dir=runs_dir,
            is_json=request.is_json,
        )
    launcher.check_folder(runs_dir.absolute())
    peers.check_environments(new.trials, launcher.name, launchers.DEFAULT)
    conclude = conclude or functools.partial(
        running.conclude_sweep, is_json=request.is_json
    )
    missing = _missing(root, asked, is_failed_retried=is_failed_retried)
    with (
        ready(
            missing,
            call.overrides,
            None if is_failed_retried else runs_dir,
            study=name,
            num_hosts=launcher.num_hosts,
        ) as replaced,
        # Made before it is locked.
        lock_study((store := Store.create(root)).root),
    ):
        # Read it again under the lock: another harness may just have written it.
        existing = study_module.read_existing_plan(root)
        plan, asked, _ = plan_module.reconcile(existing, new, request.baseline, store)
        if plan != existing:
            store.write_plan(plan)
        for note in notes:
            running.note(note)
        settings = RunSettings(
            timeout_sec=request.timeout_sec,
            topology=cpus,
            is_failed_retried=is_failed_retried,
            data_dir=plan.data_dir,
            measuring=plan.measuring,
            trees={of.revision: of for of in [request.baseline] if of is not None},
            folders=request.folders,
            launcher=launcher,
            changed_code=CodeWatch(
                plan, folders=request.folders, left_out=[runs_dir, root]
            ).changed,
            **replaced,
        )
        try:
            return running.run_until_done(store, asked, settings, conclude)
        except DoesNotFitError as error:
            if (
                not is_order_free
                or design.needs_relay(request)
                or any(trial.status is not None for trial in store.trials())
            ):
                fewer = "--controls, " * bool(request.controls)
                raise DoesNotFitError(
                    f"{error}; free some memory, or use --order sequential, or fewer"
                    f" {fewer}--mode, --backends or --replicas"
                ) from error
            running.note(f"{error}: the trials run in sequence instead")
            plan, _ = arrange(Order.SEQUENTIAL)
            _replace_plan(store, plan)
            settings = dataclasses.replace(settings, measuring=plan.measuring)
            return running.run_until_done(store, plan.trials, settings, conclude)


def _replace_plan(store: Store, plan: Plan) -> None:
    """Replaces the plan of a relay, of which nothing was measured."""
    for trial in store.read_plan().trials:
        trial_tree.clear_trials(store.trial_dir(trial.trial_id), store.list_earlier)
    store.write_plan(plan)


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
    specs = {trial.spec.num_replicas: trial.spec for trial in asked}
    # What variables take of a device, by replicas, where they are counted: of replicas
    # with memories of their own. Those on the cores of a machine share one copy.
    memory = {
        num_replicas: catalog.workload_catalog.memory_table(
            spec.workload, spec.preset, spec.options, num_replicas=num_replicas
        )
        for num_replicas, spec in sorted(specs.items())
        if spec.program is None
        and program.MESH not in spec.options
        and catalog.workload(spec.workload).memory_module
    }
    missing = _missing(root, asked)
    matching = plan.matching.trials if plan.matching is not None else ()
    in_turn = []
    if matching and matching[0].spec.device == "gpu":  # one after the other, untimed
        in_turn = _missing(Store(root).matching.root, matching)
    asked_for = [*in_turn, *missing]
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
        f"{number:>4}  {trial.trial_id[:8]}  {running.describe_trial(trial)}"
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
