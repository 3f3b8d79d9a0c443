"""The processes of a gang that Ray placed: known to the program that asked Ray."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.environment.base import ClusterEnvironment

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RayMember:
    """One process of a gang.

    Attributes:
      node_id: Ray's id of the machine, which tells two machines behind one address
        apart.
      host: The machine's address.
      port: A port that is free there.
      kind: ``worker``, or ``chief`` or ``ps`` of a job with parameter servers.
    """

    node_id: str
    host: str
    port: int
    kind: str = "worker"

    @property
    def address(self) -> str:
        """``host:port``, with brackets around an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class RayEnvironment(ClusterEnvironment):
    """A gang of Ray actors, in the order of their bundles.

    It is not detected: only the program that made the placement group knows the gang.
    """

    def __init__(self, members: Sequence[RayMember], rank: int) -> None:
        """Takes the members of the gang, by rank, and which of them this one is."""
        self._members = tuple(members)
        self._rank = rank

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """The members' addresses, by kind."""
        kinds = dict.fromkeys(member.kind for member in self._members)
        return {
            kind: tuple(one.address for one in self._members if one.kind == kind)
            for kind in kinds
        }

    def own(self) -> tuple[str, int]:
        """The kind of this member, and its index among those of that kind."""
        own = self._members[self._rank]
        earlier = self._members[: self._rank]
        return own.kind, sum(member.kind == own.kind for member in earlier)

    def config(self, *, i_trust_this_network: bool = False) -> ClusterConfig:
        """The cluster, with the local rank that follows from Ray's machines."""
        kind, index = self.own()
        here = self._members[self._rank].node_id
        earlier = self._members[: self._rank]
        return ClusterConfig(
            addresses=self.addresses(),
            kind=kind,
            index=index,
            local_rank=sum(
                member.node_id == here and member.kind in ("chief", "worker")
                for member in earlier
            ),
            i_trust_this_network=i_trust_this_network,
        )
