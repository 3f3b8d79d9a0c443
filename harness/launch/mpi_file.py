"""The target ``mpi``: a script that starts a gang with ``mpirun`` of OpenMPI.

``OpenMpiEnvironment`` reads what mpirun sets in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import PlanError
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
    for option, value in (
        ("--array", job.array),
        ("--partition", job.partition),
        ("--image", job.image),
        ("--memory-per-worker", job.memory_per_worker),
    ):
        if value is not None:
            raise PlanError(
                f"--target mpi has no {option}: mpirun starts processes on hosts that"
                " are already there; leave it out"
            )
    if job.nodes and job.workers % job.nodes:
        raise PlanError(
            f"--workers {job.workers} is not divisible by --nodes {job.nodes}; use a"
            " multiple, so that every host has as many workers"
        )
    text = render_template(
        "mpi.sh.j2",
        job=job,
        port=PORT,
        workers_per_node=job.workers // job.nodes if job.nodes else None,
        timeout_sec=seconds_of(job.time_limit),
    )
    return {f"{job.name}.mpi.sh": text}
