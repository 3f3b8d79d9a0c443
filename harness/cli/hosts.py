"""Plans a sweep for the hosts of its launcher, or submits it as a job."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from harness.cli import exit_codes
from harness.errors import PlanError
from harness.launch import catalog
from harness.launch.launcher import Job
from harness.machine import gpus
from harness.placement import allocation
from harness.planning import checked
from results.records import program
from results.records.models import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cli.host_options import HostRequest
    from harness.cli.verbs.sweep_verb import RunRequest
    from harness.launch.launcher import Launcher
    from harness.machine.machine_state import CpuTopology
    from harness.planning.plan import PlannedSweep

HARNESS_COMMAND = (sys.executable, "-m", "harness")
"""The harness, as a job starts it."""


def launcher_of(request: HostRequest) -> Launcher:
    """Returns what starts the processes of the trials, or will in a job."""
    info = request.info
    make = info.plan if info.is_submitted() else info.start
    return catalog.by_hosts(make(request.launcher_options))


def check_product(request: HostRequest, planned: PlannedSweep) -> None:
    """Checks that workers times replicas per worker makes the largest trial."""
    if request.workers is not None:
        replicas = max(trial.spec.num_replicas for trial in planned.trials)
        made = request.workers * request.replicas_per_worker
        if made != replicas:
            raise PlanError(
                f"--workers {request.workers} x --replicas-per-worker"
                f" {request.replicas_per_worker} makes {made} replicas, but the"
                f" largest of --replicas is {replicas}; choose numbers whose product"
                f" is {replicas}"
            )


def with_hosts(request: RunRequest, launcher: Launcher) -> RunRequest:
    """Returns the request in an order that is possible on the hosts."""
    if launcher.num_hosts == 1:
        return request
    if request.order is Order.RELAY:
        raise PlanError(
            f"--order relay on {launcher.num_hosts} hosts: turns are judged by the load"
            " of one machine; use --order sequential, or --nodes 1"
        )
    return request.model_copy(update={"order": Order.SEQUENTIAL})


def machine_of(
    request: RunRequest, launcher: Launcher, cpus: CpuTopology
) -> checked.Machine:
    """Returns what all hosts have together, which are like this one."""
    return checked.Machine(
        num_available_cores=cpus.num_available_cores * launcher.num_hosts,
        num_gpus=_num_gpus(request, launcher) if request.device == "gpu" else None,
        variables=launcher.identity()
        | allocation.share_identity(request.replicas_per_worker)
        | allocation.with_gpu_threads(
            program.identity_variables(os.environ), request.device
        ),
    )


def _num_gpus(hosts: HostRequest, launcher: Launcher) -> int:
    if not hosts.info.is_submitted():
        return len(gpus.visible_gpus()) * launcher.num_hosts
    if hosts.workers is None:
        raise PlanError(
            f"--device gpu with --launcher {hosts.info.name}: the GPUs of the job are"
            " unknown before it starts; give --workers and --gpus-per-worker"
        )
    return hosts.workers * hosts.replicas_per_worker


def submit(
    request: RunRequest,
    launcher: Launcher,
    planned: PlannedSweep,
    *,
    study: str,
    command: Sequence[str],
) -> int:
    """Submits a job that runs the sweep by the same command, and prints its id."""
    is_on_gpus = any(trial.spec.device == "gpu" for trial in planned.trials)
    job = Job(
        name=_job_name(study),
        command=(*HARNESS_COMMAND, *_arguments(command, study)),
        workers=request.workers or launcher.num_hosts,
        gpus_per_worker=request.replicas_per_worker if is_on_gpus else 0,
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


def _job_name(study: str) -> str:
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in study.lower())
    return name[:53].strip("-") or "sweep"


def _arguments(command: Sequence[str], study: str) -> list[str]:
    """Returns the arguments of a command, for a job: the study by name."""
    kept: list[str] = []
    words = iter(command[command.index("harness") + 1 :])
    for word in words:
        if word == "--study":
            next(words, None)
        elif word.partition("=")[0] != "--study":
            kept.append(word)
    return [*kept, "--study", study]
