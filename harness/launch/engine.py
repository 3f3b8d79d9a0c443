"""What an engine gets, and what it has to do: start the members of a gang and end them.

It starts the same command so many times at once, and lets each know which one it is.
The rest is the same for all engines (``harness/launch/gang.py``).
"""

from __future__ import annotations

import abc
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.placement.processes import Member


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
