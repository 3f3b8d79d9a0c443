"""Batch files for ``sbatch``: a gang, or a sweep that continues, which is submitted."""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError
from harness.launch.slurm import PARTITION_VARIABLE, programs
from harness.machine import cuda_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.launch.info import Job

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


# Homes are on all nodes, and stay. What the driver compiles is kept there in any case;
# beyond CUDA's default of 1 GiB it would drop what is oldest.
_KEEPS_COMPILED = f"""\
export CUDA_CACHE_PATH="${{CUDA_CACHE_PATH:-$HOME/{cuda_cache.FOLDER}}}"
export CUDA_CACHE_MAXSIZE="${{CUDA_CACHE_MAXSIZE:-{cuda_cache.LARGEST}}}"
"""


def of_gang(job: Job, nodes: int | None) -> str:
    """Returns the batch file of a gang."""
    command = shlex.join(job.command)
    gpus = f"--gpus-per-task={job.gpus_per_worker} " * bool(job.gpus_per_worker)
    body = f"srun --kill-on-bad-exit=1 {gpus}{command}\n"
    keeps = _KEEPS_COMPILED * bool(job.gpus_per_worker)
    return f"{_header(job, nodes)}\n{keeps}{body}"


def of_sweep(job: Job, nodes: int, runs_dir: str) -> str:
    """Returns the batch file of a sweep that continues after its time limit."""
    command = shlex.join(job.command)
    continues = ["requeue", "open-mode=append", f"signal=B:USR1@{GRACE_SEC}"]
    body = _CONTINUES.format(command=command, runs=shlex.quote(runs_dir))
    keeps = f"\n{_KEEPS_COMPILED}" * bool(job.gpus_per_worker)
    return _header(job, nodes, continues) + keeps + body


def log_of(job: Job, number: str = "%j") -> str:
    """Returns the file that gets what a job prints."""
    return f"{job.name}-{number}.log"


def _header(job: Job, nodes: int | None, more: Sequence[str] = ()) -> str:
    """Returns the lines that ``sbatch`` reads."""
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
        "output": log_of(job),
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


def check(partitions: str | None, nodes: int) -> None:
    """Checks that there are such partitions, and that one has as many nodes."""
    programs.check_installed(("sbatch", "sinfo", "srun"))
    lines = programs.run(["sinfo", "--noheader", "--format=%P %D"]).splitlines()
    sizes: dict[str, int] = {}
    default = ""
    for name, count in (line.split() for line in lines):
        plain = name.rstrip("*")
        sizes[plain] = sizes.get(plain, 0) + int(count)
        default = plain if name.endswith("*") else default
    listed = ", ".join(sizes) or "none"
    if not partitions and not default:
        raise PlanError(
            f"{PARTITION_VARIABLE} is not set, and this cluster has no default"
            f" partition; set it to one of {listed}"
        )
    chosen = (partitions or default).split(",")
    for name in chosen:
        if name not in sizes:
            close = difflib.get_close_matches(name, sizes, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise PlanError(
                f"{PARTITION_VARIABLE}: unknown partition {name!r}; known are"
                f" {listed}{hint}"
            )
    largest = max(chosen, key=sizes.__getitem__)
    if nodes > sizes[largest]:
        raise PlanError(
            f"--nodes {nodes}: partition {largest!r} has {sizes[largest]}; use at most"
            f" --nodes {sizes[largest]}, or set {PARTITION_VARIABLE} to another"
        )


def submit(batch_file: str) -> str:
    """Submits a batch file; returns the id of the job."""
    return programs.run(["sbatch", "--parsable"], batch_file).strip().partition(";")[0]
