"""Networks: which hosts may reach the ports of a cluster's servers.

TensorFlow servers have no authentication: every host that can reach the port can run
any operation there, such as ``WriteFile``. So public addresses raise an error, unless
the user states that something else blocks untrusted hosts. Does not import TensorFlow.
"""

from __future__ import annotations

import enum
import ipaddress
import socket
from typing import TYPE_CHECKING

from replicator._tf.ports.packets import LOOPBACK, Network
from replicator.cluster.configuration import split_address
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replicator.cluster.configuration import ClusterConfig

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Networks that IANA's registries list as not globally reachable and that machines can
# be in. Written out, because ``is_private`` differs between versions of Python.
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
    """The hosts that may reach the ports of a cluster."""

    MACHINE = "this machine"
    PRIVATE = "private networks"
    ANY = "any network"

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks from which connections are accepted; empty for ``ANY``."""
        return {Reach.MACHINE: LOOPBACK, Reach.PRIVATE: PRIVATE}.get(self, ())


def reach_of(config: ClusterConfig) -> Reach:
    """The smallest set of hosts that must be able to reach this process's port.

    This machine, if all addresses of the cluster are loopback addresses. Host names are
    resolved; a name that cannot be resolved yet counts as private.

    Raises:
      ClusterConfigError: An address is public, and the network is not declared as
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
                "but every host that can reach the port of a TensorFlow server can run "
                "any operation there, such as writing files; use the private addresses "
                "of the machines; if a firewall or a security group blocks untrusted "
                f"hosts, declare it in every process: {HOW_TO_TRUST}"
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
    """An IP address without its zone; an IPv4-mapped IPv6 address becomes IPv4."""
    found = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found


def allows(networks: Iterable[Network], address: str) -> bool:
    """Whether an IP address is in one of the networks."""
    return _is_in(plain(address), networks)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
