"""The processes of a trial: one, several that communicate, or several that never do.

The catalogue says how a backend's replicas are spread over processes; this module lists
the processes for a number of replicas, and which of them are measured. A measured
process is a *rank* and writes a rank file; the others serve and write nothing. The
control ``solo`` has a process per replica whatever its backend, and they never
communicate.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from harness import catalog
from results.records import Control

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.catalog import BackendInfo

Member = tuple[str, int]
"""Kind and index, as in ``TF_CONFIG``."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """The processes of one trial.

    Attributes:
      members: Kind and index of each, in the order of ``LocalCluster.members``; empty
        for a trial of one process without a cluster.
      num_ranks: How many of them are measured: the first ones.
      is_separate: Whether they are programs that know nothing of each other.
    """

    members: tuple[Member, ...]
    num_ranks: int
    is_separate: bool = False

    @property
    def are_several(self) -> bool:
        """Whether one process starts the others."""
        return bool(self.members)

    @property
    def is_cluster(self) -> bool:
        """Whether processes communicate with each other."""
        return self.are_several and not self.is_separate

    def count(self, kind: str) -> int:
        """Members of one kind."""
        return sum(member_kind == kind for member_kind, _ in self.members)

    def runs_replicas(self, member: Member) -> bool:
        """Whether a member computes, rather than coordinates or stores variables."""
        return member[0] == "worker"

    def num_replicas_here(self, num_replicas: int) -> int:
        """Returns the replicas of each process that is measured; 0 if others compute.

        Args:
          num_replicas: Those of the trial.
        """
        if not self.members:
            return num_replicas
        measured = self.members[: self.num_ranks]
        computing = [member for member in self.members if self.runs_replicas(member)]
        return int(set(computing) <= set(measured))

    def rank(self, member: Member) -> int | None:
        """The rank of a member, or None where it only serves."""
        place = self.members.index(member)
        return place if place < self.num_ranks else None


def processes_of(
    backend: BackendInfo, num_replicas: int, control: Control = Control.NONE
) -> Processes:
    """Returns the processes of a trial: one worker per replica, and any servers."""
    workers = tuple(("worker", index) for index in range(num_replicas))
    if control is Control.SOLO:
        return Processes(members=workers, num_ranks=num_replicas, is_separate=True)
    kinds: Mapping[str, Processes] = {
        catalog.ONE_PROCESS: Processes(members=(), num_ranks=1),
        catalog.WORKERS: Processes(members=workers, num_ranks=num_replicas),
        catalog.SERVED_WORKERS: Processes(members=workers, num_ranks=1),
        catalog.PARAMETER_SERVERS: Processes(
            members=(("chief", 0), *workers, ("ps", 0)),
            num_ranks=1,
        ),
    }
    return kinds[backend.processes]
