"""The launcher ``ray``: gangs on a Ray cluster, and a script that makes the cluster.

For machines without a scheduler: the same script runs on every host, and says with its
first argument what that host does.
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
    from harness.launch.contract import Launcher
    from harness.launch.job import Job

PORT = 6379
_TEMPLATE = Path(__file__).with_name("ray.sh.j2")


class RayFileOptions(Options):
    """Options of ``launch render --launcher ray``."""

    nodes: Nodes = None
    time_limit: TimeLimit = A_DAY


class Ray(LauncherInfo):
    """The hosts of a Ray cluster, which are what they are: nothing is submitted."""

    name = "ray"
    summary = "the hosts of a Ray cluster, for machines without a scheduler"
    file_options = RayFileOptions

    def start(self, options: Options) -> Launcher:
        """Returns what starts gangs on the cluster."""
        del options
        from harness.launch.ray.start import RayLauncher

        return RayLauncher()

    def render(self, job: Job, options: RayFileOptions) -> dict[str, str]:
        """Returns the script, by its file name."""
        nodes = options.nodes or job.workers
        workers_per_node = job.workers_per_node(nodes)
        cores = job.cores_per_worker
        text = render_template(
            _TEMPLATE,
            job=job,
            nodes=nodes,
            port=PORT,
            gpus=job.gpus_per_worker * workers_per_node,
            cores=None if cores is None else cores * workers_per_node,
            timeout_sec=math.ceil(options.time_limit),
        )
        return {f"{job.name}.ray.sh": text}


LAUNCHER = Ray()
