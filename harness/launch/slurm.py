"""Slurm: gangs by ``srun``, sweeps by ``sbatch``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.errors import LaunchError, PlanError
from harness.launch import gang as gang_lib
from harness.launch.gang import ClientEngine
from harness.launch.launchers import Nodes, RemoteLauncher, Submitted, ask
from harness.machine.gpus import CACHE_FOLDER, LARGEST_CACHE
from harness.options.option import Options
from harness.trial import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.launch.gang import Engine, Gang
    from harness.launch.launchers import Job, Launcher


JOB_VARIABLE: Final = "SLURM_JOB_ID"
NODES_VARIABLE: Final = "SLURM_JOB_NUM_NODES"
PARTITION_VARIABLE: Final = "SBATCH_PARTITION"
"""Partitions of which ``sbatch`` takes one, with commas between."""

# srun takes these as options, but they are those of the batch script.
_OPTIONS_OF_THE_BATCH = re.compile(
    r"SLURM_(N(TASKS|PROCS|NODES)|NTASKS_PER_\w+|TASKS_PER_NODE|DIST\w*|CPU_BIND\w*|"
    r"MEM_BIND\w*|CPUS_PER_TASK|TRES_PER_TASK|GPUS_PER_\w+|MEM_PER_\w+|HINT|"
    r"THREADS_PER_CORE|EXACT|OVERLAP|OVERCOMMIT|KILL_BAD_EXIT|WAIT|NETWORK)|"
    r"SRUN_CPUS_PER_TASK"
)


def check_installed(names: Sequence[str] = ("srun", "squeue", "scancel")) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise PlanError(
                f"--launcher slurm: {name!r} is not in PATH, so there is no Slurm here;"
                " run the command on a login node of the cluster, or leave --launcher"
                " out"
            )


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    is_option = _OPTIONS_OF_THE_BATCH.fullmatch
    return {name: value for name, value in environ.items() if not is_option(name)}


def run(command: Sequence[str], text: str = "") -> str:
    environ = without_options(os.environ)
    done = ask(command, text, check="scontrol ping", environ=environ)
    if done.returncode:
        raise LaunchError(
            f"{command[0]} refuses with exit code {done.returncode}:"
            f" {' '.join(done.stderr.split())[:300]}; change the options that it names,"
            " or check 'scontrol ping'"
        )
    return done.stdout


GRACE_SEC: Final = 60
"""Before the time limit, the sweep gets the signal to stop; it needs a few seconds."""

# Slurm sends USR1 shortly before the time limit, and TERM for scancel and preemption:
# only after the former is the job put back here; Slurm itself requeues a job that it
# preempts. A job that recorded nothing would do so for ever.
_CONTINUES = r"""
count() {{ find {runs} -name status.json 2>/dev/null | wc -l; }}
before=$(count)
is_limit=0
trap 'is_limit=1; kill -TERM "$sweep" 2>/dev/null' USR1
trap 'kill -TERM "$sweep" 2>/dev/null' TERM
{command} &
sweep=$!
wait "$sweep"
# A trapped signal ends "wait", not the sweep.
while kill -0 "$sweep" 2>/dev/null; do wait "$sweep"; done
wait "$sweep"; code=$?
if [ "$is_limit" = 1 ] && [ "$code" = 130 ]; then
  if [ "$(count)" -gt "$before" ]; then
    echo "the time limit is near: job $SLURM_JOB_ID continues in its next run"
    scontrol requeue "$SLURM_JOB_ID" && exec sleep 600  # until Slurm ends this run
  else
    echo "no trial ended within the time limit: give more by SBATCH_TIMELIMIT" >&2
  fi
fi
exit "$code"
"""


# Homes are on all nodes, and stay.
_KEEPS_COMPILED = f"""\
export CUDA_CACHE_PATH="${{CUDA_CACHE_PATH:-$HOME/{CACHE_FOLDER}}}"
export CUDA_CACHE_MAXSIZE="${{CUDA_CACHE_MAXSIZE:-{LARGEST_CACHE}}}"
"""
_LOG: Final = "{}-{}.log"
"""The file that gets what a job prints, by its name and number."""


def _header(job: Job, nodes: int | None, more: Sequence[str] = ()) -> str:
    gpus = job.gpus_per_worker
    per_node = None if nodes is None else -(-job.workers // nodes)
    wanted: dict[str, object] = {
        "job-name": job.name,
        "chdir": None if job.directory == "." else job.directory,
        "nodes": nodes,
        "ntasks": job.workers if per_node is None else None,
        "ntasks-per-node": per_node,
        "cpus-per-task": job.cores_per_worker,
        "gpus-per-task": gpus if per_node is None else None,
        "gpus-per-node": None if per_node is None else per_node * gpus,
        "output": _LOG.format(job.name, "%j"),
    }
    options = [f"{name}={value}" for name, value in wanted.items() if value]
    options += ["exclusive", *more]  # a neighbour would be measured too
    for option in options:
        if any(character in option for character in '\n\r"\\'):
            raise PlanError(
                f"{option!r} cannot stand in a batch file; leave out line breaks,"
                " quotes and backslashes"
            )
    lines = [
        f'#SBATCH --{name}="{value}"' if value else f"#SBATCH --{name}"
        for name, _, value in (option.partition("=") for option in options)
    ]
    return "\n".join(["#!/bin/bash", *lines]) + "\n"


def check_partitions(partitions: str | None, nodes: int) -> None:
    """Checks that there are such partitions, and that one has as many nodes."""
    check_installed(("sbatch", "sinfo", "srun"))
    lines = run(["sinfo", "--noheader", "--format=%P %D"]).splitlines()
    sizes: dict[str, int] = {}
    default = ""
    for name, count in (line.split() for line in lines):
        plain = name.rstrip("*")
        sizes[plain] = sizes.get(plain, 0) + int(count)
        default = plain if name.endswith("*") else default
    if not partitions and not default:
        raise PlanError(
            f"{PARTITION_VARIABLE} is not set, and this cluster has no default"
            f" partition; set it to one of {', '.join(sizes) or 'none'}"
        )
    chosen = (partitions or default).split(",")
    for name in chosen:
        catalog.look_up(sizes, name, what=f"partition ({PARTITION_VARIABLE})")
    largest = max(chosen, key=sizes.__getitem__)
    if nodes > sizes[largest]:
        raise PlanError(
            f"--set nodes={nodes}: partition {largest!r} has {sizes[largest]}; use at"
            f" most nodes={sizes[largest]}, or set {PARTITION_VARIABLE} to another"
        )


_ADDRESS_VARIABLE: Final = "SLURM_LAUNCH_NODE_IPADDR"
"""In each task: the address of the host of ``srun``, which is that of the harness."""
_END_BY_ITSELF_SEC = 3.0
_POLL_SEC = 0.05


def srun(nodes: int, tasks: int) -> tuple[str, ...]:
    """Returns what runs tasks on the first nodes of this allocation."""
    # The cores of a step are chosen and set by the harness, as without Slurm.
    free = ("--overlap", "--overcommit", "--cpu-bind=none", "--mpi=none")
    hosts = (f"--nodes={nodes}", f"--ntasks={tasks}")
    return ("srun", *hosts, *free, "--input=none", "--wait=0")


class SlurmOptions(Options):
    """What a job needs of Slurm; ``sbatch`` reads the rest from ``SBATCH_*``."""

    nodes: Nodes = None


class Slurm(RemoteLauncher):
    """Steps of ``srun`` in an allocation; outside of one, jobs of ``sbatch``."""

    name = "slurm"
    summary = "steps of srun, or a job of sbatch outside of an allocation"
    options = file_options = SlurmOptions

    def __init__(self, num_hosts: int = 1) -> None:
        self.num_hosts = num_hosts

    def is_submitted(self) -> bool:
        return not os.environ.get(JOB_VARIABLE)

    def start(self, options: SlurmOptions) -> Launcher:
        if self.is_submitted():
            raise PlanError(
                "--launcher slurm: this process is in no allocation (SLURM_JOB_ID is"
                " not set); run the command with sbatch or salloc, or use 'sweep"
                " --launcher slurm', which submits it"
            )
        check_installed()
        launcher = Slurm(int(os.environ.get(NODES_VARIABLE, "1")))
        if (options.nodes or 1) > launcher.num_hosts:
            raise PlanError(
                f"--set nodes={options.nodes}: the allocation of job"
                f" {os.environ[JOB_VARIABLE]} has {launcher.num_hosts}; ask for more"
                " nodes, or leave it out"
            )
        return launcher

    def plan(self, options: SlurmOptions) -> Launcher:
        return Slurm(options.nodes or 1)

    def submit(self, job: Job, options: SlurmOptions, runs_dir: Path) -> Submitted:
        """Submits a job that requeues itself until the sweep is complete."""
        nodes = options.nodes or 1
        check_partitions(os.environ.get(PARTITION_VARIABLE), nodes)
        continues = ["requeue", "open-mode=append", f"signal=B:USR1@{GRACE_SEC}"]
        keeps = f"\n{_KEEPS_COMPILED}" * bool(job.gpus_per_worker)
        runs = shlex.quote(str(runs_dir))
        body = _CONTINUES.format(command=shlex.join(job.command), runs=runs)
        text = _header(job, nodes, continues) + keeps + body
        number = run(["sbatch", "--parsable"], text).strip().partition(";")[0]
        log = _LOG.format(job.name, number)
        return Submitted(
            number=number,
            follow=f"'squeue --jobs={number}' and 'tail -F {log}'",
            end=f"scancel {number}",
        )

    def render(self, job: Job, options: SlurmOptions) -> dict[str, str]:
        if options.nodes is not None:
            job.check_nodes(options.nodes)
        gpus = job.gpus_per_worker
        own = f"--gpus-per-task={gpus} " * bool(gpus) + shlex.join(job.command)
        keeps = _KEEPS_COMPILED * bool(gpus)
        step = f"{keeps}srun --kill-on-bad-exit=1 {own}\n"
        return {f"{job.name}.sbatch": f"{_header(job, options.nodes)}\n{step}"}

    def engine(self, gang: Gang) -> Engine:
        return ClientEngine(
            (
                *srun(gang.num_hosts, gang.num_members),
                f"--job-name={gang.trial_dir.name}",
                f"--distribution=plane={gang.members_per_host}",
                f"--chdir={gang.trial_dir}",
                "--relative=0",
                # The gang decides how long the others may record what they observed.
                "--kill-on-bad-exit=0",
                "--unbuffered",
                *gang.command,
            ),
            trial_dir=gang.trial_dir,
            variables={
                **without_options(gang.variables),
                gang_lib.HOST_IN_VARIABLE: _ADDRESS_VARIABLE,
            },
            log="srun.log",
            hint="run the sweep where Slurm's programs are in PATH",
            end_by_itself_sec=_END_BY_ITSELF_SEC,
        )

    def end(self, trial_dir: Path) -> None:
        """Waits until no step of this job is named as a trial; cancels the others."""
        start, is_cancelled = time.monotonic(), False
        job = f"--jobs={os.environ[JOB_VARIABLE]}"
        ask_steps = ["squeue", "--steps", "--noheader", job, "--format=%i %j"]
        while True:
            rows = [line.split() for line in run(ask_steps).splitlines()]
            steps = [row[0] for row in rows if row[1:] == [trial_dir.name]]
            if not steps:
                return
            passed = time.monotonic() - start
            if passed > _END_BY_ITSELF_SEC and not is_cancelled:
                run(["scancel", *steps])
                is_cancelled = True
            if passed > 2 * _END_BY_ITSELF_SEC:
                # Slurm takes a step whose own process was killed for running until the
                # job ends: what counts is that no process of the trial is left.
                end = (*process_tree.END_COMMAND, str(trial_dir))
                nodes = self.num_hosts
                run([*srun(nodes, nodes), "--ntasks-per-node=1", *end])
                return
            time.sleep(_POLL_SEC)


LAUNCHER = Slurm()
