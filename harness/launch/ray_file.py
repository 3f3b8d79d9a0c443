"""The target ``ray``: a script that makes a Ray cluster of hosts, and runs a sweep.

For machines without a scheduler: the same script runs on every host, and says with its
first argument what that host does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.launch import given_hosts
from harness.launch.amounts import seconds_of
from harness.launch.templating import render_template

if TYPE_CHECKING:
    from harness.launch.targets import Job

PORT = 6379


def render(job: Job) -> dict[str, str]:
    """Returns the script, by its file name.

    Raises:
      PlanError: The job has what a Ray cluster of hosts does not, or nodes would differ
        in workers.
    """
    given_hosts.check(job, target="ray", does="the script runs")
    nodes = job.nodes or job.workers
    workers_per_node = job.workers // nodes
    cores = job.cores_per_worker
    text = render_template(
        "ray.sh.j2",
        job=job,
        nodes=nodes,
        port=PORT,
        gpus=job.gpus_per_worker * workers_per_node,
        cores=None if cores is None else cores * workers_per_node,
        timeout_sec=seconds_of(job.time_limit),
    )
    return {f"{job.name}.ray.sh": text}
