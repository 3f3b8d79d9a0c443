"""The launcher ``mpi``: a script that starts a gang with ``mpirun`` of OpenMPI.

``OpenMpiEnvironment`` reads what mpirun sets in every process.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.info import LauncherInfo
from harness.launch.options import A_DAY, Nodes, TimeLimit
from harness.launch.templating import render_template
from harness.options.option import Options

if TYPE_CHECKING:
    from harness.launch.job import Job

PORT = 29500
_TEMPLATE = Path(__file__).with_name("mpi.sh.j2")


class MpiFileOptions(Options):
    """Options of ``launch render --launcher mpi``."""

    nodes: Nodes = None
    time_limit: TimeLimit = A_DAY


class Mpi(LauncherInfo):
    """A gang that ``mpirun`` starts on hosts that are already there."""

    name = "mpi"
    summary = "mpirun of OpenMPI, on hosts that are already there"
    file_options = MpiFileOptions

    def render(self, job: Job, options: MpiFileOptions) -> dict[str, str]:
        """Returns the script, by its file name."""
        text = render_template(
            _TEMPLATE,
            job=job,
            port=PORT,
            workers_per_node=(
                None if options.nodes is None else job.workers_per_node(options.nodes)
            ),
            timeout_sec=math.ceil(options.time_limit),
        )
        return {f"{job.name}.mpi.sh": text}


LAUNCHER = Mpi()
