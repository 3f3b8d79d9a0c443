"""The launcher ``local``: all processes of a trial run on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.launch.launcher import Launcher, LauncherInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.machine.allocation import Processes
    from harness.options.option import Options


CLUSTER_COMMAND = (sys.executable, "-m", "harness.trial.ranks")
"""Starts the processes of a cluster; the worker command and directory are appended."""


class LocalLauncher(Launcher):
    name = "local"

    def command(
        self, processes: Processes, worker_command: Sequence[str]
    ) -> tuple[str, ...]:
        if processes.are_several:
            return (*CLUSTER_COMMAND, *worker_command)
        return tuple(worker_command)


class Local(LauncherInfo):
    name = "local"
    summary = "processes of this machine"

    def start(self, options: Options) -> Launcher:
        del options
        return LocalLauncher()


LAUNCHER = Local()
