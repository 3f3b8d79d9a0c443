"""Launchers whose engine starts the members of a gang on several hosts.

The harness waits (``harness/launch/gang.py``) for the members
(``harness/launch/member.py``), each of which starts one process of the trial on its
host and ends it when the connection to the harness is lost.
"""

from __future__ import annotations

import abc
import sys
from typing import TYPE_CHECKING

from harness.launch.contract import Launcher
from harness.launch.gang import RunningGang
from harness.launch.gang_plan import GangPlan
from harness.placement import hosts
from replicator.cluster.environment import roles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.launch.engine import Engine, Gang
    from harness.placement.processes import Processes
    from results.records.models import Placement

MEMBER_COMMAND = (sys.executable, "-m", "harness.launch.member")
"""The worker command and the directory are appended."""


class RemoteLauncher(Launcher):
    """A launcher whose engine starts the members of a gang on several hosts."""

    @abc.abstractmethod
    def start(self, gang: Gang) -> Engine:
        """Starts the members; returns before they run where the engine takes time.

        Raises:
          LaunchError: The engine refuses; the message says what to do.
        """

    def prepare(
        self, trial_dir: Path, processes: Processes, placement: Placement
    ) -> None:
        """Writes what the processes of the gang read."""
        members = processes.members or (("worker", 0),)
        GangPlan(
            members=members,
            cpusets=placement.cpusets,
            num_ranks=processes.num_ranks,
            members_per_host=hosts.members_per_host(len(members), self.num_hosts),
            variables={roles.VARIABLE: roles.text_of(members)},
        ).write(trial_dir)

    def command(
        self, processes: Processes, worker_command: Sequence[str]
    ) -> tuple[str, ...]:
        """Returns what each member of the gang runs, the same with all engines."""
        del processes
        return (*MEMBER_COMMAND, *worker_command)

    def gang(
        self, trial_dir: Path, variables: Mapping[str, str], command: Sequence[str]
    ) -> RunningGang:
        """Returns the members of a trial, not yet started."""
        return RunningGang(self.start, trial_dir, variables, command)
