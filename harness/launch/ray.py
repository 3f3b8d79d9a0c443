"""The launcher ``ray``: gangs on a Ray cluster, and a script that makes the cluster.

For machines without a scheduler: the same script runs on every host, and says with its
first argument what that host does. Ray itself is imported by the client of a gang.
"""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from harness.launch import ray_cluster
from harness.launch.gang import ClientEngine
from harness.launch.launcher import (
    LauncherInfo,
    Nodes,
    RemoteLauncher,
    render_template,
)
from harness.machine.gpus import CACHE_FOLDER, LARGEST_CACHE
from harness.options.kinds import duration
from harness.options.option import Option, Options

if TYPE_CHECKING:
    from harness.launch.gang import Engine, Gang
    from harness.launch.launcher import Job, Launcher
    from harness.launch.ray_cluster import RayHost

PORT = 6379
CLIENT_COMMAND = (sys.executable, "-m", "harness.launch.ray_cluster", "gang")
_END_BY_ITSELF_SEC = 10.0
"""Ray stops the members, gives their hosts back, and disconnects."""
_TEMPLATE = Path(__file__).with_name("ray.sh.j2")


class RayLauncher(RemoteLauncher):
    """Starts gangs on a Ray cluster, for machines without a scheduler."""

    name = "ray"

    @functools.cached_property
    def hosts(self) -> tuple[RayHost, ...]:
        """The hosts of the cluster; asked once."""
        return ray_cluster.read_hosts()

    @property
    def num_hosts(self) -> int:
        """Hosts of the cluster, over which a trial is spread."""
        return len(self.hosts)

    def start(self, gang: Gang) -> Engine:
        """Starts the client, which starts the members when all hosts are free."""
        return ClientEngine(
            CLIENT_COMMAND,
            trial_dir=gang.trial_dir,
            variables=gang.variables,
            log="ray.log",
            hint="run the harness with a Python that exists",
            end_by_itself_sec=_END_BY_ITSELF_SEC,
            message=gang.to_json(),
        )


class RayFileOptions(Options):
    """Options of ``launch render --launcher ray``."""

    nodes: Nodes = None
    time_limit: Annotated[
        float, Option(help="Time after which the job is ended.", kind=duration())
    ] = 24 * 3600.0


class Ray(LauncherInfo):
    """The hosts of a Ray cluster, which are what they are: nothing is submitted."""

    name = "ray"
    summary = "the hosts of a Ray cluster, for machines without a scheduler"
    file_options = RayFileOptions

    def start(self, options: Options) -> Launcher:
        """Returns what starts gangs on the cluster."""
        del options
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
            cuda_folder=CACHE_FOLDER,
            cuda_size=LARGEST_CACHE,
            cores=None if cores is None else cores * workers_per_node,
            timeout_sec=math.ceil(options.time_limit),
        )
        return {f"{job.name}.ray.sh": text}


LAUNCHER = Ray()
