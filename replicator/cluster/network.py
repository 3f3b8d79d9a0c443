"""Networks: from where the ports of a cluster's servers may be reached.

Whoever can reach the port of a TensorFlow server can run any operation there, such as
``WriteFile``; it asks nobody who they are. So addresses that the whole internet can
reach are refused, unless somebody says that something else keeps strangers out. Free
of TensorFlow.
"""

from __future__ import annotations

import enum
import ipaddress
import socket
from typing import TYPE_CHECKING

from replicator.cluster.configuration import split_address
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replicator.cluster.configuration import ClusterConfig

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))
# Those that IANA's registries call not globally reachable and that machines can have.
# Written out, since what ``is_private`` means differs between versions of Python.
PRIVATE = LOOPBACK + tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "169.254.0.0/16",
            "192.0.2.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)
HOW_TO_TRUST = (
    "`--i-trust-this-network` for replicator.server, "
    "cluster=environment.detect().config(i_trust_this_network=True) for a program"
)


class Reach(enum.Enum):
    """From where the ports of a cluster may be reached."""

    MACHINE = "this machine"
    PRIVATE = "private networks"
    ANY = "any network"

    @property
    def networks(self) -> tuple[Network, ...]:
        """Where connections may come from; empty for ``ANY``."""
        return {Reach.MACHINE: LOOPBACK, Reach.PRIVATE: PRIVATE}.get(self, ())


def reach_of(config: ClusterConfig) -> Reach:
    """From where this process's port must be reached, and no farther.

    This machine, if all addresses of the cluster are loopback addresses. Names are
    resolved; one that cannot be, yet, counts as private.

    Raises:
      ClusterConfigError: An address is public, and nobody said that the network is
        trusted.
    """
    if config.i_trust_this_network:
        return Reach.ANY
    reach = Reach.MACHINE
    for address in (a for of_kind in config.addresses.values() for a in of_kind):
        found = resolve(address)
        public = [str(ip) for ip in found if not _is_in(ip, PRIVATE)]
        if public:
            raise ClusterConfigError(
                f"address {address!r} of the cluster is public ({', '.join(public)}), "
                "and whoever can reach the port of a TensorFlow server can run any "
                "operation there, such as writing files; use the private addresses of "
                "the machines, or, where a firewall or a security group keeps "
                f"strangers out, say so in every process: {HOW_TO_TRUST}"
            )
        if not found or not all(_is_in(ip, LOOPBACK) for ip in found):
            reach = Reach.PRIVATE
    return reach


def resolve(address: str) -> list[Address]:
    """The IP addresses of ``name:port``; none if the name is not known."""
    name, port = split_address(address)
    try:
        infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(plain(str(info[4][0])) for info in infos))


def plain(text: str) -> Address:
    """An IP address without its zone; IPv4 in IPv6 clothes is IPv4."""
    found = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found


def allows(networks: Iterable[Network], address: str) -> bool:
    """Whether an IP address is in one of some networks."""
    return _is_in(plain(address), networks)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
