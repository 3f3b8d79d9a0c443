"""Launchers whose engine starts the members of a gang on several hosts.

The harness waits (``harness/launch/gang.py``) for the members
(``harness/launch/member.py``), each of which starts one process of the trial on its
host and ends it when the connection to the harness is lost.
"""

from __future__ import annotations

import abc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import PlanError
from harness.launch.contract import Launcher
from harness.launch.gang import GangPlan, RunningGang
from harness.placement import hosts
from harness.trial import rank_file
from replicator.cluster.environment import environments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.launch.engine import Engine, Gang
    from harness.placement.processes import Member, Processes
    from results.records.models import Placement

MEMBER_COMMAND = (sys.executable, "-m", "harness.launch.member")
"""The worker command and the directory are appended."""
_ROOT = Path(__file__).resolve().parents[2]
_CHECK_SEC = 60.0


class RemoteLauncher(Launcher):
    """A launcher whose engine starts the members of a gang on several hosts."""

    @abc.abstractmethod
    def start(self, gang: Gang) -> Engine:
        """Starts the members; returns before they run where the engine takes time.

        Raises:
          LaunchError: The engine refuses; the message says what to do.
        """

    def check_folder(self, folder: Path) -> None:
        """Starts a member on every host, which only looks for a folder in it.

        Raises:
          PlanError: Some do not see it, or no member can be started there.
        """
        existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        members = tuple(("worker", index) for index in range(self.num_hosts))
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = [str(_ROOT), *(os.path.abspath(p) for p in inherited if p)]  # noqa: PTH100
        with tempfile.TemporaryDirectory(dir=existing, prefix=".tmp-seen-") as name:
            place = Path(name)
            _plan(members, [()] * len(members), len(members), 1).write(place)
            # Members make folders in that for temporary files, and leave them to us.
            variables = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "TMPDIR": name,
            }
            gang = self.gang(place, variables, (*MEMBER_COMMAND, "true"))
            reason = f"its hosts have not answered within {_CHECK_SEC:g} s"
            gang.start()
            try:
                gang.wait(_CHECK_SEC)
            except subprocess.TimeoutExpired:
                pass
            finally:
                gang.end()
                self.end(place)
            if gang.exit_code:
                found = rank_file.read_first_exit(place)
                reason = found.reason or " ".join("".join(gang.output).split())[-300:]
            if gang.exit_code != 0:
                raise PlanError(
                    f"--launcher {self.name}, --runs-dir {str(folder)!r}: {reason}"
                )

    def prepare(
        self, trial_dir: Path, processes: Processes, placement: Placement
    ) -> None:
        """Writes what the processes of the gang read."""
        members = processes.members or (("worker", 0),)
        per_host = hosts.members_per_host(len(members), self.num_hosts)
        plan = _plan(members, placement.cpusets, processes.num_ranks, per_host)
        plan.write(trial_dir)

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


def _plan(
    members: tuple[Member, ...],
    cpusets: Sequence[tuple[int, ...]],
    num_ranks: int,
    members_per_host: int,
) -> GangPlan:
    return GangPlan(
        members=members,
        cpusets=tuple(cpusets),
        num_ranks=num_ranks,
        members_per_host=members_per_host,
        variables={environments.ROLES: environments.roles_text(members)},
    )
