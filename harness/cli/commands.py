"""Runs sweeps: one study, what a study lacks, or a study for each value of a setting.

Each study of a varied one is a study as any other, which the same command without
``--vary`` would make; the folder around them has a page of all. A function of a
subcommand returns the exit code of the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from harness import catalog, errors
from harness.cli import running
from harness.cli.exit_codes import ExitCode
from harness.command import peers
from harness.doctor import gpu as gpu_lib
from harness.launch import launchers
from harness.launch.launchers import Job, Launcher
from harness.machine import allocation, gpu_watch, gpus, machine_state
from harness.machine.machine_state import now_text
from harness.options.option import declared
from harness.planning import defaults, design, estimate
from harness.planning import plan as plan_module
from harness.planning.checked import Machine
from harness.planning.checked import check as check_request
from harness.planning.request import Axis, varied
from harness.run import sweep as run
from harness.run import trial_tree
from harness.run.progress import describe_trial
from harness.run.trial_runner import RunSettings
from harness.sources import code_digest
from harness.sources.code_digest import CodeWatch
from harness.trial import gpu_probe
from results.records import identity, program
from results.records.models import Order, Plan, PlannedTrial
from results.records.texts import without_options
from results.store import studies as studies_lib
from results.store import untrusted, writing
from results.store.studies import Varied
from results.store.study_store import PLAN_NAME, TRIALS_NAME, Store
from results.store.writing import lock_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from harness.cli.subcommands.sweep_command import RunRequest


_HARNESS_COMMAND = (sys.executable, "-m", "harness")  # The harness, as a job starts it.
_NOT_OF_RUNS = ("harness_command", "probe", "source_root")
"""Overrides that are no ``RunSettings``."""


def _submit(request: RunRequest, launcher: Launcher, planned: Plan) -> int:
    study, command = planned.study, planned.command
    specs = [trial.spec for trial in planned.trials]
    workers, gpus_per_worker = launcher.num_hosts, 0
    if any(spec.device == "gpu" for spec in specs):
        gpus_per_worker = request.replicas_per_worker
        workers = -(-max(spec.num_replicas for spec in specs) // gpus_per_worker)
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in study.lower())
    arguments = without_options(command[command.index("harness") + 1 :], "--study")
    harness_command = request.overrides.get("harness_command", _HARNESS_COMMAND)
    job = Job(
        name=name[:53].strip("-") or "sweep",
        command=(*harness_command, *arguments, "--study", study),
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        directory=os.getcwd(),  # noqa: PTH109 (as a string)
    )
    job.check()
    submitted = request.info.submit(job, request.launcher_options, request.runs_dir)
    click.echo(submitted.number)
    running.note(
        f"submitted job {submitted.number}; follow it with {submitted.follow}; its"
        f" study is {request.runs_dir / study}; {submitted.end} ends it, and the same"
        " command continues it"
    )
    return ExitCode.OK


@contextlib.contextmanager
def _ready(
    missing: Sequence[PlannedTrial],
    request: RunRequest,
    study: str,
    num_hosts: int,
    runs_dir: Path | None = None,
) -> Iterator[None]:
    """Checks what can be checked before trials run, and holds their GPUs meanwhile."""
    chosen = _check_models(missing, num_hosts)
    if chosen and runs_dir is not None:
        estimate.check_memory(missing, runs_dir, study=study, gpu=chosen[0].name)
    with gpu_watch.hold_gpus(chosen, study=study):
        for state in gpu_lib.read_gpu_states(chosen) if chosen else ():
            name = f"GPU {state.index} ({state.name})"
            if state.fault:
                raise errors.UnfitMachineError(
                    f"{name} cannot be read ({state.fault}), so it is unknown who uses"
                    " it; reset it (sudo nvidia-smi --gpu-reset), or hide it with"
                    " CUDA_VISIBLE_DEVICES"
                )
            if state.is_busy:
                left = [gpu.cuda_id for gpu in chosen if gpu.index != state.index]
                without = f", or leave it out: CUDA_VISIBLE_DEVICES={','.join(left)}"
                used = f"{state.utilization or 0:.0%} busy".replace("%", " %")
                if number := state.num_users:
                    used = f"used by {number} other process{'es' * (number > 1)}"
                raise errors.UnfitMachineError(
                    f"{name} is {used}, but a trial needs its GPUs for itself; end the"
                    f" others ('nvidia-smi' lists them){without * bool(left)}"
                )
        if chosen and any(trial.spec.program is None for trial in missing):
            ids = [gpu.cuda_id for gpu in chosen]
            probe = request.overrides.get("probe", gpu_probe.probe)
            gpu_probe.check(probe(ids), ids)
        yield


def _check_models(
    trials: Sequence[PlannedTrial], num_hosts: int
) -> tuple[gpus.Gpu, ...]:
    """The GPUs of the largest trial on this host; none where all run on CPUs."""
    counts = [t.spec.num_replicas for t in trials if t.spec.device == "gpu"]
    if not counts:
        return ()
    return gpus.choose(gpus.visible_gpus(), -(-max(counts) // num_hosts))


def topology_of(request: RunRequest) -> machine_state.CpuTopology:
    """Returns the CPUs that trials of a request get."""
    return request.overrides.get("topology") or machine_state.read_topology()


def _checked(request: RunRequest) -> tuple[RunRequest, Launcher, design.CheckedSweep]:
    """Returns a request that can be carried out on the hosts, and what it needs."""
    writing.check_reachable(request.runs_dir)
    for path in (request.runs_dir, *request.runs_dir.absolute().parents):
        if path.exists() and not path.is_dir():
            raise errors.StudyError(
                f"--runs-dir {str(request.runs_dir)!r}: {str(path)!r} is a file, but a"
                " directory is needed; choose another --runs-dir"
            )
    info = request.info
    make = info.plan if info.is_submitted() else info.start
    launcher = launchers.by_hosts(make(request.launcher_options))
    if launcher.num_hosts > 1:
        if request.order is Order.INTERLEAVED:
            raise errors.PlanError(
                f"--order interleaved on {launcher.num_hosts} hosts: blocks are judged "
                "by the load of one machine; use --order sequential, or nodes=1"
            )
        request = request.model_copy(update={"order": Order.SEQUENTIAL})
    # All hosts together, which are like this one.
    num_cores, num_gpus = topology_of(request).num_available_cores, None
    if request.device == "gpu":
        if not info.is_submitted():
            num_gpus = len(gpus.visible_gpus()) * launcher.num_hosts
        elif request.replicas is None:
            raise errors.PlanError(
                f"--device gpu with --launcher {info.name}: the GPUs of the job are"
                " unknown before it starts; give --replicas"
            )
        else:
            num_gpus = max(request.replicas)
    machine = Machine(
        num_available_cores=num_cores * launcher.num_hosts,
        num_gpus=num_gpus,
        variables=launcher.identity()
        | allocation.share_identity(request.replicas_per_worker)
        | allocation.with_gpu_threads(
            program.recorded_variables(os.environ, program.IDENTITY), request.device
        ),
    )
    return request, launcher, check_request(request, machine)


def sweep(
    request: RunRequest,
    conclude: running.Conclude | None = None,
    check: Callable[[Plan], object] = lambda _: None,
) -> int:
    """Plans, and unless it is a dry run, runs what is missing and reports."""
    runs_dir, is_failed_retried = request.runs_dir, request.retry is not None
    if request.study is not None:
        plan_module.check_name(request.study)
    request, launcher, checked = _checked(request)
    prefix = "gate-quality-" if request.is_quality_only else "gate-"
    prefix *= request.gate is not None
    name = request.study or prefix + plan_module.default_name(checked)
    root = runs_dir / name
    known = plan_module.read_existing_plan(root)
    is_order_free = request.order is None
    # It was decided when the study began, maybe by the memory that was free.
    order = known.measuring.order if is_order_free and known else None
    arrange = functools.partial(
        plan_module.arrange,
        checked,
        study=name,
        command=request.recorded_command,
        launcher=request.launcher,
    )
    new, notes = arrange(order)
    check(new)
    is_submitted = request.info.is_submitted()
    if is_submitted and not request.is_dry_run:
        return _submit(request, launcher, new)
    if not is_submitted:  # a login node has no GPUs of the job
        _check_models(new.trials, launcher.num_hosts)
    measured = Store(root) if known is not None else None
    plan, asked, note = plan_module.reconcile(known, new, request.baseline, measured)
    notes += [note] * bool(note)
    if request.is_dry_run:
        return _print_plan(request, plan, asked, notes, root)
    _check_launch(launcher, new, runs_dir)
    missing = _missing(root, asked, is_failed_retried=is_failed_retried)
    earlier = None if is_failed_retried else runs_dir
    with (
        _ready(missing, request, name, launcher.num_hosts, earlier),
        # Made before it is locked.
        lock_study((store := Store.create(root)).root),
    ):
        # Read it again under the lock: another harness may just have written it.
        existing = plan_module.read_existing_plan(root)
        plan, asked, _ = plan_module.reconcile(existing, new, request.baseline, store)
        if plan != existing:
            store.write_plan(plan)
        for note in notes:
            running.note(note)
        run_study = functools.partial(_run_study, store, request, launcher, conclude)
        try:
            return run_study(plan, asked)
        except errors.DoesNotFitError as error:
            if (
                not is_order_free
                or design.interleaved_settings(request)
                or request.controls
                or any(trial.status is not None for trial in store.trials())
            ):
                fewer = "--controls, " * bool(request.controls)
                raise errors.DoesNotFitError(
                    f"{error}; free some memory, or use --order sequential, or fewer"
                    f" {fewer}--mode, --backends or --replicas"
                ) from error
            running.note(f"{error}: the trials run in sequence instead")
            for trial in store.read_plan().trials:  # of which nothing was measured
                folder = store.trial_dir(trial.trial_id)
                trial_tree.clear_trials(folder, store.list_earlier)
            plan, _ = arrange(Order.SEQUENTIAL)
            store.write_plan(plan)
            return run_study(plan, plan.trials)


def _check_launch(launcher: Launcher, plan: Plan, folder: Path) -> None:
    launcher.check_folder(folder.absolute())
    peers.check_environments(plan.trials, launcher.name, launchers.DEFAULT)


def _run_study(
    store: Store,
    request: RunRequest,
    launcher: Launcher,
    conclude: running.Conclude | None,
    plan: Plan,
    trials: Sequence[PlannedTrial],
) -> int:
    left_out, folders = [store.root.parent, store.root], request.folders
    watch = CodeWatch(plan, folders=folders, left_out=left_out)
    baseline = request.baseline
    settings = RunSettings(
        timeout_sec=plan.timeout_sec,
        is_failed_retried=request.retry is not None,
        data_dir=plan.data_dir,
        measuring=plan.measuring,
        trees={} if baseline is None else {baseline.revision: baseline},
        folders=folders,
        launcher=launcher,
        changed_code=watch.changed,
    )
    own = {k: v for k, v in request.overrides.items() if k not in _NOT_OF_RUNS}
    settings = dataclasses.replace(settings, **own)
    conclude = conclude or functools.partial(
        running.conclude_sweep, is_json=request.is_json
    )
    return running.run_until_done(store, trials, settings, conclude)


def _missing(
    root: Path, asked: Sequence[PlannedTrial], *, is_failed_retried: bool = False
) -> list[PlannedTrial]:
    """Returns the trials that are to run, of a study that may not exist yet."""
    if not untrusted.is_there(root / TRIALS_NAME):
        return list(asked)
    return run.missing_trials(Store(root), asked, is_failed_retried=is_failed_retried)


def _print_plan(
    request: RunRequest,
    plan: Plan,
    asked: Sequence[PlannedTrial],
    notes: Sequence[str],
    root: Path,
) -> int:
    specs = {trial.spec.num_replicas: trial.spec for trial in asked}
    # What variables take of a device, by replicas, where they are counted: of replicas
    # with memories of their own. Those on the cores of a machine share one copy.
    memory = {
        num_replicas: catalog.workload(spec.workload).memory_table(
            spec.preset, spec.options, num_replicas=num_replicas
        )
        for num_replicas, spec in sorted(specs.items())
        if spec.program is None
        and program.MESH not in spec.options
        and catalog.workload(spec.workload).memory_module
    }
    missing = _missing(root, asked)
    untimed = []
    checks = plan.equivalence.trials if plan.equivalence is not None else ()
    if checks and checks[0].spec.device == "gpu":  # one after the other
        untimed = _missing(Store(root).equivalence.root, checks)
    durations = estimate.read_durations(request.runs_dir)
    guess = durations.estimate([*untimed, *missing], plan.measuring)
    if request.is_json:
        data = plan.model_dump(mode="json")
        data |= {"num_missing": len(missing), "estimated_sec": guess.total_sec}
        data |= {"estimated_most_sec": guess.most_sec, "estimate_basis": guess.basis}
        data |= {"memory": memory} if memory else {}
        click.echo(json.dumps(data, indent=2))
        return ExitCode.OK
    for number, trial in enumerate(asked, start=1):
        click.echo(f"{number:>4}  {trial.trial_id[:8]}  {describe_trial(trial)}")
    for num_replicas, table in memory.items():
        click.echo("\n".join([f"x{num_replicas}: {table[0]}", *table[1:]]))
    for note in notes:
        running.note(note)
    cases = len({trial.case_id for trial in asked})
    click.echo(
        f"{root}: {len(asked)} trials of {cases} cases, {len(missing)} to run,"
        f" {guess.text}"
    )
    return ExitCode.OK


def sweep_varied(request: RunRequest) -> int:
    axis = request.vary
    assert axis is not None
    if request.is_json:
        raise errors.PlanError(
            "--json is for one study, and --vary makes several; leave it out, and use"
            " 'report NAME/STUDY --format json'"
        )
    asked = varied(request.model_copy(update={"vary": None}), axis)
    names = [
        plan_module.default_name(_checked(asked_value)[-1])
        for asked_value in asked.values()
    ]
    stem, digest = names[0].rpartition("-")[0], identity.digest(names)[:8]
    name = request.study or f"{stem}-{axis.key}-{digest}"
    plan_module.check_name(name)
    root = request.runs_dir / name
    known = _existing(root, axis)
    studies = tuple(dict.fromkeys((*(known.studies if known else ()), *asked)))
    if not request.is_dry_run and (known is None or studies != known.studies):
        made = Varied(
            key=axis.key,
            studies=studies,
            created_at=known.created_at if known else now_text(),
            command=request.recorded_command,
        )
        root.mkdir(parents=True, exist_ok=True)
        studies_lib.write(root, made)
    codes = []
    for value, (study, asked_value) in zip(axis.values, asked.items(), strict=True):
        running.note(f"{name}: {axis.key} {value}")
        words = without_options(
            request.recorded_command, "--vary", "--study", "--runs-dir"
        )
        words += [*axis.words(value), "--runs-dir", str(root), "--study", study]
        update = {"runs_dir": root, "study": study, "recorded_command": tuple(words)}
        codes.append(sweep(asked_value.model_copy(update=update)))
        if codes[-1] == ExitCode.INTERRUPTED:
            return ExitCode.INTERRUPTED
    if not request.is_dry_run and not request.info.is_submitted():
        write_page(root)
    return combined(codes)


def _existing(root: Path, axis: Axis) -> Varied | None:
    if not untrusted.is_there(root):
        return None
    known = studies_lib.read(root) if root.is_dir() else None
    if known is None:
        raise errors.StudyError(
            f"{str(root)!r} exists and is no parameter sweep; choose another --study"
        )
    if known.key != axis.key:
        raise errors.DifferentStudyError(
            f"study {root.name!r} varies {known.key!r}, and this sweep {axis.key!r};"
            " choose another --study"
        )
    return known


def combined(codes: Sequence[int]) -> int:
    if len({*codes}) == 1:
        return codes[0]
    worst = (ExitCode.INTERRUPTED, ExitCode.USAGE, ExitCode.UNFIT)
    return next((each for each in worst if each in codes), ExitCode.SOME_TRIALS_FAILED)


def write_page(root: Path) -> int:
    from reports import output_file
    from reports.site.build import build_varied

    path = root / "report" / "index.html"
    output_file.write(path, build_varied(root), what="report")
    running.note(f"report: {path}")
    return ExitCode.OK


def check_comparable(
    first: str, second: str, differences: Sequence[str], is_different_allowed: bool
) -> None:
    """Refuses studies that are not comparable, unless they are to be shown anyway."""
    if differences and not is_different_allowed:
        raise errors.DifferentStudyError(
            f"{first!r} and {second!r} are not comparable: {'; '.join(differences)};"
            " measure both on one machine with the same options, or use"
            " --allow-different to see them anyway"
        )


def studies_of(text: str, runs_dir: Path) -> tuple[Path, list[str] | None]:
    """Returns a study, and of a varied one the names of the studies in it."""
    root = plan_module.find_study(text, runs_dir)
    if (varied_study := studies_lib.read(root)) is None:
        return root, None
    names = varied_study.studies
    return root, [n for n in names if untrusted.is_there(root / n / PLAN_NAME)]


def expanded(texts: Iterable[str], runs_dir: Path) -> Iterator[str]:
    """Yields the names of studies, each varied one replaced by its own."""
    for text in texts:
        root, names = studies_of(text, runs_dir)
        if names is None:
            yield text
        else:
            yield from (str((root / name).absolute()) for name in names)


def for_each(
    request: Any,
    run: Callable[[Store], int],
    after: Callable[[Path], int] | None = None,
) -> int:
    """Does for a study what a subcommand does, or for each study of a varied one."""
    root, names = studies_of(request.study, request.runs_dir)
    if names is None:
        return run(Store.open(root))
    if request.is_json:
        raise errors.StudyError(
            f"--json is for one study, and {root.name!r} has {len(names)}; name"
            f" one, such as {root.name}/{names[0] if names else 'STUDY'}"
        )
    codes = []
    for name in names:
        click.echo(f"{root.name}/{name}")
        codes.append(run(Store.open((root / name).absolute())))
        if codes[-1] == ExitCode.INTERRUPTED:
            return codes[-1]
    if after is not None:
        codes.append(after(root))
    return combined(codes) if codes else ExitCode.NOTHING_MEASURED


_TAKEN = {"study", "runs_dir", "retry", "timeout_sec", "launcher", "is_json"}
"""What may be said anew of a study that is continued."""


def run_missing(request: RunRequest) -> int:
    """Runs the missing trials of a study, or of each study of a varied one."""
    for option in declared(type(request)):
        value = getattr(request, option.field)
        if option.field not in _TAKEN and value != option.value:
            raise errors.PlanError(
                f"{option.spelling} has no effect on a study that is continued by its"
                " name; leave it out, or repeat the whole command of study"
                f" {request.study!r} to extend it"
            )
    run = functools.partial(_continue, request)
    return for_each(request, run, write_page)


def _continue(request: RunRequest, store: Store) -> int:
    root, plan = store.root, store.read_plan()
    plan_module.check_trials(plan)
    code_digest.check_code(plan, store=store)
    launcher = launchers.start(request.launcher)
    launcher.check(trial.spec for trial in plan.trials)
    _check_launch(launcher, plan, root)
    update: dict[str, Any] = {"data_dir": plan_module.data_dir_here() or plan.data_dir}
    if request.timeout_sec != defaults.TIMEOUT_SEC:
        update["timeout_sec"] = request.timeout_sec
    plan = plan.model_copy(update=update)
    trials, is_retried = plan.trials, request.retry is not None
    with lock_study(root):
        missing = _missing(root, trials, is_failed_retried=is_retried)
        with _ready(missing, request, plan.study, launcher.num_hosts):
            return _run_study(store, request, launcher, None, plan, trials)
