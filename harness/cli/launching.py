"""Plans a sweep for several hosts, and submits it where there is no allocation yet."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from harness.cli import exit_codes
from harness.errors import PlanError
from harness.launch import catalog, targets
from harness.launch.local import LocalLauncher
from harness.launch.slurm import script, srun
from harness.launch.slurm import submit as slurm
from harness.machine import gpu_choice
from harness.placement import gpu_threads, processes
from harness.planning import cases, shards
from results.records import variables
from results.records.models import Order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.cli.launch_options import Launching
    from harness.launch.contract import Launcher
    from harness.machine.topology import CpuTopology
    from harness.planning.plan import PlannedSweep
    from harness.planning.request import SweepRequest

HARNESS_COMMAND = (sys.executable, "-m", "harness")
"""The harness, as a job starts it."""


def is_submitted(launching: Launching) -> bool:
    """Whether the sweep becomes a job, rather than to run here."""
    return launching.launcher == "slurm" and not os.environ.get(srun.JOB_VARIABLE)


def launcher_of(launching: Launching) -> Launcher:
    """Returns what starts the processes of the trials.

    Raises:
      PlanError: There is no such engine here, or the allocation is too small.
    """
    if launching.launcher != "slurm":
        return launcher_named(launching.launcher)
    if is_submitted(launching):
        nodes = launching.nodes or 1
        return srun.SlurmLauncher(nodes) if nodes > 1 else LocalLauncher()
    launcher = catalog.make("slurm")
    if (launching.nodes or 1) > launcher.num_hosts:
        raise PlanError(
            f"--nodes {launching.nodes}: the allocation of job"
            f" {os.environ[srun.JOB_VARIABLE]} has {launcher.num_hosts}; ask for more"
            " nodes, or leave --nodes out"
        )
    return launcher


def launcher_named(name: str) -> Launcher:
    """Returns a launcher for the hosts that are here.

    On a single host, processes are started as anywhere else, so that the cases of a
    relay can take turns there.

    Raises:
      HarnessError: The name is unknown, or its engine is not here.
    """
    launcher = catalog.make(name)
    return launcher if launcher.num_hosts > 1 else LocalLauncher()


def check_product(launching: Launching, planned: PlannedSweep) -> None:
    """Checks that workers times replicas per worker makes the largest trial.

    Raises:
      PlanError: It does not.
    """
    if launching.workers is not None:
        replicas = max(trial.spec.num_replicas for trial in planned.trials)
        made = launching.workers * launching.replicas_per_worker
        if made != replicas:
            raise PlanError(
                f"--workers {launching.workers} x --replicas-per-worker"
                f" {launching.replicas_per_worker} makes {made} replicas, but the"
                f" largest of --replicas is {replicas}; choose numbers whose product"
                f" is {replicas}"
            )


def with_hosts(request: SweepRequest, launcher: Launcher) -> SweepRequest:
    """Returns the request in an order that is possible on the hosts.

    Raises:
      PlanError: Another one was requested.
    """
    if launcher.num_hosts == 1:
        return request
    if request.order is Order.RELAY:
        raise PlanError(
            f"--order relay on {launcher.num_hosts} hosts: turns are judged by the load"
            " of one machine; use --order sequential, or --nodes 1"
        )
    return request.model_copy(update={"order": Order.SEQUENTIAL})


def machine_of(
    launching: Launching,
    launcher: Launcher,
    request: SweepRequest,
    cpus: CpuTopology,
) -> cases.Machine:
    """Returns what all hosts have together, which are like this one.

    Raises:
      PlanError: Nothing says how many GPUs there will be.
    """
    return cases.Machine(
        num_available_cores=cpus.num_available_cores * launcher.num_hosts,
        num_gpus=(_num_gpus(launching, launcher) if request.device == "gpu" else None),
        variables=launcher.identity()
        | processes.share_identity(launching.replicas_per_worker)
        | gpu_threads.with_launch_threads(
            variables.identity_variables(os.environ), request.device
        ),
    )


def _num_gpus(launching: Launching, launcher: Launcher) -> int:
    if not is_submitted(launching):
        return len(gpu_choice.visible_gpus()) * launcher.num_hosts
    if launching.workers is None:
        raise PlanError(
            f"--device gpu with --launcher {launching.launcher}: the GPUs of the job"
            " are unknown before it starts; give --workers and --gpus-per-worker"
        )
    return launching.workers * launching.replicas_per_worker


def submit(
    launching: Launching,
    planned: PlannedSweep,
    *,
    study: str,
    runs_dir: Path,
    command: Sequence[str],
) -> int:
    """Submits a job that runs the sweep by the same command, and prints its id.

    Raises:
      PlanError: The cluster does not have what it needs; nothing was submitted.
    """
    if launching.array is not None:
        shards.own(planned, (1, launching.array))  # are there enough repetitions?
    slurm.check(partition=launching.partition, nodes=launching.nodes or 1)
    is_on_gpus = any(trial.spec.device == "gpu" for trial in planned.trials)
    job = targets.Job(
        name=_job_name(study),
        command=(*HARNESS_COMMAND, *_arguments(command, study)),
        workers=launching.workers or launching.nodes or 1,
        gpus_per_worker=launching.replicas_per_worker if is_on_gpus else 0,
        nodes=launching.nodes or 1,
        array=launching.array,
        partition=launching.partition,
        time_limit=launching.time_limit,
        directory=os.getcwd(),  # noqa: PTH109 (as a string)
    )
    number = slurm.submit(script.of_sweep(job, str(runs_dir)))
    click.echo(number)
    log = f"{job.name}-{number}{'_*' if launching.array else ''}.log"
    click.echo(
        f"submitted job {number}; follow it with 'squeue --jobs={number}' and 'tail -F"
        f" {log}'; its study is {runs_dir / study}; scancel {number} ends it, and the"
        " same command continues it",
        err=True,
    )
    return exit_codes.OK


def _job_name(study: str) -> str:
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in study.lower())
    return name[:53].strip("-") or "sweep"


def _arguments(command: Sequence[str], study: str) -> list[str]:
    """Returns the arguments of a command, for a job: the study by name, no array."""
    kept: list[str] = []
    words = iter(command[command.index("harness") + 1 :])
    for word in words:
        if word in ("--array", "--study"):
            next(words, None)
        elif not word.startswith(("--array=", "--study=")):
            kept.append(word)
    return [*kept, "--study", study]
