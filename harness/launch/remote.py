"""Launchers whose engine starts the members of a gang on several hosts.

What an engine has to do is small: start the same command so many times at once, let
each know which one it is, and end them. The rest is the same for all: the harness waits
(``harness/launch/gang.py``) for the members (``harness/launch/member.py``), each of
which starts one process of the trial on its host and ends it when the connection to the
harness is lost.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.contract import Launcher
from harness.launch.gang_plan import GangPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.launch.gang import RunningGang
    from harness.placement.processes import Member, Processes
    from results.records.models import Placement

MEMBER_COMMAND = (sys.executable, "-m", "harness.launch.member")
"""The worker command and the directory are appended."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """The members that an engine has to start at the same time.

    Attributes:
      trial_dir: The directory of the trial, which all hosts see; also the current one.
      members: Kind and index of each.
      members_per_host: Members on each host: the first so many on the first host.
      command: What each of them runs; it learns from the engine which one it is.
      variables: Its environment variables.
    """

    trial_dir: Path
    members: tuple[Member, ...]
    members_per_host: int
    command: tuple[str, ...]
    variables: Mapping[str, str]

    def to_json(self) -> bytes:
        """Returns a line of JSON, for a client that is a process of its own."""
        fields = {**dataclasses.asdict(self), "trial_dir": str(self.trial_dir)}
        return json.dumps(fields).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> Gang:
        """Returns what ``to_json`` has written."""
        fields = json.loads(line)
        return cls(
            trial_dir=Path(fields["trial_dir"]),
            members=tuple((kind, index) for kind, index in fields["members"]),
            members_per_host=fields["members_per_host"],
            command=tuple(fields["command"]),
            variables=fields["variables"],
        )

    @property
    def num_members(self) -> int:
        """How many they are."""
        return len(self.members)

    @property
    def num_hosts(self) -> int:
        """Hosts that the gang needs."""
        return -(-self.num_members // self.members_per_host)


class Engine(abc.ABC):
    """Members that an engine has started, or will when there is room."""

    @abc.abstractmethod
    def poll(self) -> int | None:
        """Exit code of the engine's own client; None while it runs."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Ends all members, also those that wait; harmless if they have ended."""

    def output(self) -> str:
        """What the engine said so far, for the failure of a trial."""
        return ""


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
        # Not at the top: the clients of engines import this module, and the records
        # take long.
        from harness.placement import hosts
        from replicator.cluster.environment import roles

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
        from harness.launch.gang import RunningGang  # which imports this module

        return RunningGang(self, trial_dir, variables, command)
