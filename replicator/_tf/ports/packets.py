"""Port filters: the kernel drops packets of hosts that may not connect to a socket.

A listening socket gets a kernel filter (classic BPF, ``SO_ATTACH_FILTER``; Linux, no
privileges needed): a packet whose source is not in an allowed network is dropped before
a connection exists, as by a firewall.
"""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import socket
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))

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


def attach(listener: socket.socket, code: Sequence[Instruction]) -> None:
    """Attaches a filter to a socket, replacing any other."""
    packed = b"".join(struct.pack("HBBI", *step) for step in code)
    kept = ctypes.create_string_buffer(packed, len(packed))
    listener.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("HP", len(code), ctypes.addressof(kept)),
    )


@functools.cache
def check_system() -> None:
    """Tests that filters work on this system, once.

    It is tried, not believed: sandboxes take a filter and ignore it.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(f"{sys.platform} has none")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # An address that this machine's own connections do not come from.
        attach(listener, program([_NOBODY]))
        if _accepts(listener):
            raise OSError("a filter that drops all did not")
        attach(listener, program(LOOPBACK))
        if not _accepts(listener):
            raise OSError("a filter for this machine dropped it")


def _accepts(listener: socket.socket) -> bool:
    try:
        with socket.create_connection(listener.getsockname(), _TRY_SEC):
            return True
    except OSError:
        return False
