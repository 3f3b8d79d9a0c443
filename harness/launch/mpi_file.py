"""The target ``mpi``: a script that starts a gang with ``mpirun`` of OpenMPI.

``OpenMpiEnvironment`` reads what mpirun sets in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.launch import given_hosts
from harness.launch.amounts import seconds_of
from harness.launch.templating import render_template

if TYPE_CHECKING:
    from harness.launch.targets import Job

PORT = 29500


def render(job: Job) -> dict[str, str]:
    """Returns the script, by its file name.

    Raises:
      PlanError: The job has what mpirun does not, or nodes would differ in workers.
    """
    given_hosts.check(job, target="mpi", does="mpirun starts processes")
    text = render_template(
        "mpi.sh.j2",
        job=job,
        port=PORT,
        workers_per_node=job.workers // job.nodes if job.nodes else None,
        timeout_sec=seconds_of(job.time_limit),
    )
    return {f"{job.name}.mpi.sh": text}
