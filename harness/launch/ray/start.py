"""The launcher ``ray``: gangs on the hosts of a Ray cluster."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from harness.launch.client import ClientEngine
from harness.launch.ray import cluster
from harness.launch.remote import RemoteLauncher

if TYPE_CHECKING:
    from pathlib import Path

    from harness.launch.engine import Engine, Gang
    from harness.launch.ray.cluster import RayHost

CLIENT_COMMAND = (sys.executable, "-m", "harness.launch.ray.client")
_END_BY_ITSELF_SEC = 10.0
"""Ray stops the members, gives their hosts back, and disconnects."""


class RayLauncher(RemoteLauncher):
    """Starts gangs on a Ray cluster, for machines without a scheduler."""

    name = "ray"

    @functools.cached_property
    def hosts(self) -> tuple[RayHost, ...]:
        """The hosts of the cluster; asked once.

        Raises:
          LaunchError: There is no cluster.
        """
        return cluster.read_hosts()

    @property
    def num_hosts(self) -> int:
        """Hosts of the cluster, over which a trial is spread."""
        return len(self.hosts)

    def check_folder(self, folder: Path) -> None:
        """Lets every host look for a file that is written here.

        Raises:
          LaunchError: Some do not see it; the message names them.
        """
        cluster.check_shared(folder)

    def start(self, gang: Gang) -> Engine:
        """Starts the client, which starts the members when all hosts are free.

        Raises:
          LaunchError: It cannot be run.
        """
        return ClientEngine(
            CLIENT_COMMAND,
            trial_dir=gang.trial_dir,
            variables=gang.variables,
            log="ray.log",
            hint="run the harness with a Python that exists",
            end_by_itself_sec=_END_BY_ITSELF_SEC,
            message=gang.to_json(),
        )
