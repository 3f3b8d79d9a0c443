"""Port filters: which hosts can connect to a listening socket of this process.

TensorFlow's server listens on all interfaces, whatever address it gets, and has no
option to change that. So its listening sockets get a kernel filter (classic BPF,
``SO_ATTACH_FILTER``; Linux, no privileges needed): a packet whose source is not in an
allowed network is dropped before a connection exists, as by a firewall.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ipaddress
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

from replicator._tf import listen as _tf_listen
from replicator.cluster import network
from replicator.cluster.configuration import split_address
from replicator.cluster.network import Reach
from replicator.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.cluster.configuration import ClusterConfig
    from replicator.cluster.network import Network

_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>; Python has no name for it
_TRY_SEC = 0.2
# Classic BPF (Linux, Documentation/networking/filter.rst).
_LOAD_BYTE, _LOAD_WORD = 0x30, 0x20
_AND, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x54, 0x74, 0x15, 0x06
_IP_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here are into the IP header
_V4, _V6 = 4, 6
_V4_SOURCE, _V6_SOURCE = 12, 8
_ACCEPT, _DROP = 0xFFFFFFFF, 0

# No connection of this machine to itself comes from there.
_NOBODY = ipaddress.ip_network("192.0.2.1/32")

Instruction = tuple[int, int, int, int]


@contextlib.contextmanager
def guarded(config: ClusterConfig) -> Iterator[None]:
    """Filters the port of this process, which TensorFlow opens inside.

    The filter is in place before the first connection is possible.

    Args:
      config: The cluster; determines which hosts may connect (``network.reach_of``).

    Raises:
      ClusterConfigError: An address of the cluster is public; see ``network``.
      ClusterError: This system has no such filters, or TensorFlow listens in an unknown
        way.
    """
    reach = check(config)
    if reach is Reach.ANY:
        yield
        return
    _, port = split_address(config.address)
    ports = []

    def filter_it(descriptor: int) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            ports.append(opened.getsockname()[1])
            if ports[-1] == port:
                restrict(opened, reach)

    with contextlib.ExitStack() as listening:
        try:
            listening.enter_context(_tf_listen.before_listen(filter_it))
        except OSError as error:
            raise _unprotected(reach, error) from error
        yield
    if port not in ports:
        raise _unprotected(reach, f"TensorFlow listened at {ports}, not at {port}")


def restrict(listener: socket.socket, reach: Reach) -> None:
    """Makes a listening socket drop packets from networks that are not allowed.

    Raises:
      OSError: The system has no such filters.
    """
    if reach is not Reach.ANY:
        attach(listener, program(reach.networks))


def program(networks: Sequence[Network]) -> list[Instruction]:
    """The filter: accepts packets from allowed networks, and drops all others."""
    v4 = [_match(net, _V4_SOURCE) for net in networks if net.version == _V4]
    v6 = [_match(net, _V6_SOURCE) for net in networks if net.version == _V6]
    drop: Instruction = (_RETURN, 0, 0, _DROP)
    # A jump has eight bits, so the v6 part is behind a return.
    v4_part = [step for match in v4 for step in match] + [drop]
    v6_part = [step for match in v6 for step in match] + [drop]
    return [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),  # the version
        (_JUMP_IF_EQUAL, 0, len(v4_part), _V4),
        *v4_part,
        *v6_part,
    ]


def _match(allowed: Network, source: int) -> list[Instruction]:
    """Accepts a packet whose source is in a network, or falls through."""
    num_words = allowed.max_prefixlen // 32
    bits = allowed.max_prefixlen
    address, mask = int(allowed.network_address), int(allowed.netmask)
    steps: list[tuple[int, int, int]] = []
    for word in range(num_words):
        shift = bits - 32 * (word + 1)
        word_mask = mask >> shift & 0xFFFFFFFF
        if word_mask:
            steps.append((4 * word, word_mask, address >> shift & 0xFFFFFFFF))
    code: list[Instruction] = []
    for place, (offset, word_mask, value) in enumerate(steps):
        num_behind = 3 * (len(steps) - place - 1) + 1
        code += [
            (_LOAD_WORD, 0, 0, _IP_HEADER + source + offset),
            (_AND, 0, 0, word_mask),
            (_JUMP_IF_EQUAL, 0, num_behind, value),
        ]
    return [*code, (_RETURN, 0, 0, _ACCEPT)]


def check(config: ClusterConfig) -> Reach:
    """Returns which hosts may reach this process's port, if that can be enforced.

    Raises:
      ClusterConfigError: An address of the cluster is public; see ``network``.
      ClusterError: This system has no such filters.
    """
    reach = network.reach_of(config)
    if reach is not Reach.ANY:
        check_system(reach)
    return reach


@functools.cache
def check_system(reach: Reach) -> None:
    """Tests that filters work on this system.

    Raises:
      ClusterError: They do not.
    """
    try:
        if not sys.platform.startswith("linux"):
            raise OSError(f"{sys.platform} has none")  # noqa: TRY301 (one message)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            # An address that this machine's own connections do not come from.
            attach(listener, program([_NOBODY]))
            if _accepts(listener):
                raise OSError("a filter that drops all did not")  # noqa: TRY301
            attach(listener, program(network.LOOPBACK))
            if not _accepts(listener):
                raise OSError("a filter for this machine dropped it")  # noqa: TRY301
    except OSError as error:
        raise _unprotected(reach, error) from error


def _unprotected(reach: Reach, why: object) -> ClusterError:
    return ClusterError(
        "TensorFlow's server listens on all interfaces, and every host that can reach "
        "its port can run any operation there; the filter that restricts it to "
        f"{reach.value} does not work on this system ({why}); if a firewall blocks "
        f"untrusted hosts, declare it: {network.HOW_TO_TRUST}"
    )


def _accepts(listener: socket.socket) -> bool:
    try:
        with socket.create_connection(listener.getsockname(), _TRY_SEC):
            return True
    except OSError:
        return False


def attach(listener: socket.socket, code: Sequence[Instruction]) -> None:
    """Attaches a filter to a socket, replacing any other.

    Raises:
      OSError: The system has no such filters.
    """
    packed = b"".join(struct.pack("HBBI", *step) for step in code)
    kept = ctypes.create_string_buffer(packed, len(packed))
    listener.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("HP", len(code), ctypes.addressof(kept)),
    )
