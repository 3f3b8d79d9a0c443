"""What processes of a job say of themselves to the chief, and what follows from it.

Pure functions; ``address_exchange`` sends and receives.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from replicator.cluster import network
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_PORT = 65_535


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """What a process is given by its launcher.

    Attributes:
      rank: Its number, from 0.
      world_size: How many processes there are.
      chief_host: Where rank 0 runs.
      chief_port: Where rank 0 collects the addresses.
    """

    rank: int
    world_size: int
    chief_host: str
    chief_port: int

    @property
    def chief(self) -> str:
        """Where rank 0 collects the addresses, as ``name:port``."""
        host = f"[{self.chief_host}]" if ":" in self.chief_host else self.chief_host
        return f"{host}:{self.chief_port}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """What the chief knows of a process.

    Attributes:
      host: The address that its connection comes from.
      port: Where it will listen.
      chief_host: The address at which it reached the chief.
    """

    host: str
    port: int
    chief_host: str


def addresses_of(
    registered: Mapping[int, Registration], chief_port: int
) -> tuple[str, ...]:
    """Returns the addresses of all processes, from what the others registered.

    Args:
      registered: All but the chief, by rank.
      chief_port: Where the chief will listen for TensorFlow.
    """
    seen_at = [registered[rank].chief_host for rank in sorted(registered)]
    outside = [host for host in seen_at if not _is_loopback(host)]
    chief = (outside or seen_at or ["127.0.0.1"])[0]
    hosts = {0: (chief, chief_port)}
    for rank, one in registered.items():
        hosts[rank] = (chief if _is_loopback(one.host) else one.host, one.port)
    return tuple(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in (hosts[rank] for rank in sorted(hosts))
    )


def parse_registration(
    line: bytes, host: str, world_size: int
) -> tuple[int, Registration] | None:
    """Reads what a process sent; None if that is not one of ours.

    Raises:
      ClusterConfigError: It is a process of a job of another size.
    """
    try:
        sent = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(sent, dict):
        return None
    numbers = [sent.get(name) for name in ("rank", "world_size", "port")]
    # Not isinstance: true and false are integers, too.
    integers = [number for number in numbers if type(number) is int]
    if len(integers) < len(numbers):
        return None
    rank, size, port = integers
    seen_at = str(sent.get("chief_host"))
    if not 0 < port <= _MAX_PORT or not _is_address(seen_at):
        return None
    if size != world_size:
        raise ClusterConfigError(
            f"rank {rank} at {host} has a world size of {size}, the chief has"
            f" {world_size}: two jobs use the same MASTER_ADDR and MASTER_PORT, or the"
            " processes were started with different sizes; give every job its own port"
        )
    if not 0 < rank < world_size:
        raise ClusterConfigError(
            f"a process at {host} has rank {rank}, which must be from 1 to"
            f" {world_size - 1}: the chief is rank 0 itself; number each process once"
        )
    return rank, Registration(host=host, port=port, chief_host=seen_at)


def _is_loopback(host: str) -> bool:
    return network.allows(network.LOOPBACK, host)


def _is_address(text: str) -> bool:
    try:
        network.plain(text)
    except ValueError:
        return False
    return True
