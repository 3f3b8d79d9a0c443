"""Closes the ports of a cluster's processes to hosts outside it.

TensorFlow's server listens on all interfaces, whatever address it gets, has no option
to change that and no authentication: every host that can reach the port can run any
operation there, such as ``WriteFile``. So packets from other networks are dropped
(``_tf/ports``), and public addresses are refused unless the user states that something
else blocks untrusted hosts.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import os
import socket
from typing import TYPE_CHECKING

from replicator._tf.ports import listen
from replicator._tf.ports.listen import LOOPBACK, Network
from replicator.cluster.configuration import split_address
from replicator.errors import ClusterConfigError, ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


@contextlib.contextmanager
def guarded(config: ClusterConfig) -> Iterator[None]:
    """Filters the port of this process, which TensorFlow opens inside.

    The filter is in place before the first connection is possible.
    """
    reach = check(config)
    if reach is Reach.ANY:
        yield
        return
    # TensorFlow answers from the moment it listens, with Python's lock held, so a
    # filter that is added afterwards is too late. Ports that other parts
    # of it open meanwhile, such as its profiler, are none of the cluster's.
    _, port = split_address(config.address)
    ports = []

    def filter_it(descriptor: int) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            ports.append(opened.getsockname()[1])
            if ports[-1] == port:
                restrict(opened, reach)

    with contextlib.ExitStack() as listening:
        try:
            listening.enter_context(listen.before_listen(filter_it))
        except OSError as error:
            raise _unprotected(reach, error) from error
        yield
    if port not in ports:
        raise _unprotected(reach, f"TensorFlow listened at {ports}, not at {port}")


def restrict(listener: socket.socket, reach: Reach) -> None:
    """Makes a listening socket drop packets from networks that are not allowed."""
    if reach is not Reach.ANY:
        listen.attach(listener, listen.program(reach.networks))


def check(config: ClusterConfig) -> Reach:
    """Returns which hosts may reach this process's port, if that can be enforced."""
    reach = reach_of(config)
    if reach is not Reach.ANY:
        check_system(reach)
    return reach


def check_system(reach: Reach) -> None:
    """Tests that filters work on this system."""
    try:
        listen.check_system()
    except OSError as error:
        raise _unprotected(reach, error) from error


def _unprotected(reach: Reach, why: object) -> ClusterError:
    return ClusterError(
        "TensorFlow's server listens on all interfaces, and every host that can reach "
        "its port can run any operation there; the filter that restricts it to "
        f"{reach.value} does not work on this system ({why}); if a firewall blocks "
        f"untrusted hosts, declare it: {HOW_TO_TRUST}"
    )
