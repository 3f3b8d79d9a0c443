"""Batch files for ``sbatch``: a gang, an array of shards, a sweep that continues."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.launch.targets import Job

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
    echo "no trial ended within the time limit: give more --time-limit" >&2
  fi
fi
exit "$code"
"""


def render(job: Job) -> Mapping[str, str]:
    """Returns the batch file of a gang, or of an array of single tasks.

    Raises:
      PlanError: See ``options``.
    """
    command = shlex.join(job.command)
    if job.array is None:
        gpus = f"--gpus-per-task={job.gpus_per_worker} " * bool(job.gpus_per_worker)
        body = f"srun --kill-on-bad-exit=1 {gpus}{command}\n"
    else:
        # Each job of the array runs one shard on whole nodes of its own.
        body = f'{command} --shard "$SLURM_ARRAY_TASK_ID/{job.array}"\n'
    return {f"{job.name}.sbatch": header(job) + "\n" + body}


def of_sweep(job: Job, runs_dir: str) -> str:
    """Returns the batch file of a sweep that continues after its time limit.

    Args:
      job: The command of the sweep, and what it needs.
      runs_dir: Where its studies are: what counts as progress.
    """
    command = shlex.join(job.command)
    if job.array is not None:
        command += f' --shard "$SLURM_ARRAY_TASK_ID/{job.array}"'
    continues = ["requeue", "open-mode=append", f"signal=B:USR1@{GRACE_SEC}"]
    body = _CONTINUES.format(command=command, runs=shlex.quote(runs_dir))
    return header(job, continues) + body


def header(job: Job, more: Sequence[str] = ()) -> str:
    """Returns the lines that ``sbatch`` reads.

    Raises:
      PlanError: A value has characters that would end its line.
    """
    per_node = -(-job.workers // (job.nodes or 1))
    wanted: dict[str, object] = {
        "job-name": job.name,
        "chdir": None if job.directory == "." else job.directory,
        "nodes": job.nodes,
        "ntasks": job.workers if job.nodes is None else None,
        "ntasks-per-node": None if job.nodes is None else per_node,
        "cpus-per-task": job.cores_per_worker,
        "gpus-per-task": job.gpus_per_worker if job.nodes is None else None,
        "gpus-per-node": None if job.nodes is None else per_node * job.gpus_per_worker,
        "partition": job.partition,
        "time": job.time_limit,
        "array": None if job.array is None else f"1-{job.array}",
        "output": f"{job.name}-%A_%a.log" if job.array else f"{job.name}-%j.log",
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
