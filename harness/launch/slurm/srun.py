"""Gangs inside an allocation of Slurm: one step of ``srun`` for each trial."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from harness.launch import engine
from harness.launch.engine import ClientEngine
from harness.launch.remote import RemoteLauncher
from harness.launch.slurm import JOB_VARIABLE, NODES_VARIABLE, programs
from harness.trial import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.launch.engine import Engine, Gang

_ADDRESS_VARIABLE: Final = "SLURM_LAUNCH_NODE_IPADDR"
"""In each task: the address of the host of ``srun``, which is that of the harness."""
_END_BY_ITSELF_SEC = 3.0
_POLL_SEC = 0.05


def from_environment(environ: Mapping[str, str]) -> SlurmLauncher:
    """Returns the launcher for the allocation that this process is in."""
    programs.check_installed()
    return SlurmLauncher(int(environ.get(NODES_VARIABLE, "1")))


class SlurmLauncher(RemoteLauncher):
    """Starts each trial as a step on the nodes of an allocation."""

    name = "slurm"

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    @property
    def num_hosts(self) -> int:
        """Nodes of the allocation."""
        return self._num_nodes

    def start(self, gang: Gang) -> Engine:
        """Starts a step; its tasks are the members."""
        return Step(gang)

    def end(self, trial_dir: Path) -> None:
        """Waits for a trial's step, whose members end by themselves; cancels it."""
        end_steps(trial_dir, self._num_nodes)


def srun_command(gang: Gang) -> tuple[str, ...]:
    """Returns the command that starts the members of a gang, block by block."""
    return (
        "srun",
        f"--job-name={gang.trial_dir.name}",
        f"--nodes={gang.num_hosts}",
        f"--ntasks={gang.num_members}",
        f"--distribution=plane={gang.members_per_host}",
        f"--chdir={gang.trial_dir}",
        "--relative=0",
        # The cores of a step are chosen and set by the harness, as without Slurm.
        "--overlap",
        "--overcommit",
        "--cpu-bind=none",
        # The gang decides how long the others may still record what they observed.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        "--input=none",
        "--unbuffered",
        *gang.command,
    )


def on_every_node(num_nodes: int) -> tuple[str, ...]:
    """Returns what runs a command once on each node of this allocation."""
    return (
        "srun",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes}",
        "--ntasks-per-node=1",
        "--overlap",
        "--overcommit",
        "--cpu-bind=none",
        "--mpi=none",
        "--input=none",
        "--wait=0",
    )


class Step(ClientEngine):
    """One step of ``srun``."""

    def __init__(self, gang: Gang) -> None:
        """Starts a step; its tasks are the members."""
        super().__init__(
            srun_command(gang),
            trial_dir=gang.trial_dir,
            variables={
                **programs.without_options(gang.variables),
                engine.HOST_IN_VARIABLE: _ADDRESS_VARIABLE,
            },
            log="srun.log",
            hint="run the sweep where Slurm's programs are in PATH",
            end_by_itself_sec=_END_BY_ITSELF_SEC,
        )


def end_steps(trial_dir: Path, num_nodes: int) -> None:
    """Waits until no step of this job is named as a trial; cancels those that remain.

    Where Slurm's own process of a step was killed, Slurm takes the step for running
    until the job ends: then what counts is that no process of the trial is left.
    """
    job, name = os.environ[JOB_VARIABLE], trial_dir.name
    start = time.monotonic()
    is_cancelled = False
    while steps := steps_named(job, name):
        passed = time.monotonic() - start
        if passed > _END_BY_ITSELF_SEC and not is_cancelled:
            programs.run(["scancel", *steps])
            is_cancelled = True
        if passed > 2 * _END_BY_ITSELF_SEC:
            programs.run(
                [
                    *on_every_node(num_nodes),
                    *process_tree.END_COMMAND,
                    str(trial_dir),
                ]
            )
            return
        time.sleep(_POLL_SEC)


def steps_named(job: str, name: str) -> list[str]:
    """Returns the ids of the steps of a job that have a name."""
    lines = programs.run(
        ["squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %j"]
    )
    rows = [line.split() for line in lines.splitlines()]
    return [row[0] for row in rows if row[1:] == [name]]
