"""Slurm's programs: whether they are here, and what they answer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from harness.errors import LaunchError, PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANSWER_SEC = 30.0
# srun takes these as options, but they are those of the batch script.
_OPTIONS_OF_THE_BATCH = re.compile(
    r"SLURM_(N(TASKS|PROCS|NODES)|NTASKS_PER_\w+|TASKS_PER_NODE|DIST\w*|CPU_BIND\w*|"
    r"MEM_BIND\w*|CPUS_PER_TASK|TRES_PER_TASK|GPUS_PER_\w+|MEM_PER_\w+|HINT|"
    r"THREADS_PER_CORE|EXACT|OVERLAP|OVERCOMMIT|KILL_BAD_EXIT|WAIT|NETWORK)|"
    r"SRUN_CPUS_PER_TASK"
)


def check_installed(names: Sequence[str] = ("srun", "squeue", "scancel")) -> None:
    """Checks that some of the programs can be found."""
    for name in names:
        if shutil.which(name) is None:
            raise PlanError(
                f"--launcher slurm: {name!r} is not in PATH, so there is no Slurm here;"
                " run the command on a login node of the cluster, or leave --launcher"
                " out"
            )


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables without those that ``srun`` takes as options."""
    return {
        name: value
        for name, value in environ.items()
        if not _OPTIONS_OF_THE_BATCH.fullmatch(name)
    }


def run(command: Sequence[str], text: str = "") -> str:
    """Returns what a program prints."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SEC,
            check=False,
            env=without_options(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"{command[0]} does not answer ({error}); check 'scontrol ping', then run"
            " the same command again"
        ) from error
    if done.returncode:
        raise LaunchError(
            f"{command[0]} refuses with exit code {done.returncode}:"
            f" {' '.join(done.stderr.split())[:300]}; change the options that it names,"
            " or check 'scontrol ping'"
        )
    return done.stdout
