"""Closes the ports of a cluster's processes to hosts outside it.

TensorFlow's server listens on all interfaces and has no authentication: every host that
can reach the port can run any operation there, such as ``WriteFile``. So packets from
other networks are dropped, and public addresses are refused unless the user states that
something else blocks untrusted hosts. docs/design.md says what breaks where TensorFlow
changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import ipaddress
import mmap
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from replicator.cluster.configuration import ClusterConfig, split_address
from replicator.errors import ClusterConfigError, ClusterError

# TensorFlow opens its port and accepts connections in one call, in C++ and with
# Python's lock held, without a hook in between: whoever looks for the socket from
# another thread comes too late. So the pointers through which its libraries call
# ``listen`` are replaced for that call. Python has them filled in when it loads a
# library (RTLD_NOW). test_dispatch notices when this breaks.

_LIBRARIES = "libtensorflow"
_EPERM = 1
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, use_errno=True)
_Pointer = ctypes.c_size_t
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def before_listen(prepare: Callable[[int], None]) -> Iterator[None]:
    """Calls a function on each socket before TensorFlow listens on it."""
    slots = _slots()

    def listen(descriptor: int, backlog: int) -> int:
        try:
            prepare(descriptor)
        except Exception:  # noqa: BLE001 (it would be lost in C++, which gets an errno)
            ctypes.set_errno(_EPERM)
            return -1
        return int(_LIBC.listen(descriptor, backlog))

    hook = _FUNCTION(listen)
    try:
        _point(slots, hook)
        yield
    finally:
        _point(slots, _LIBC.listen)


def _slots() -> list[int]:
    """Where the pointers to ``listen`` of TensorFlow's libraries are in memory."""
    if not sys.platform.startswith("linux"):
        raise OSError(f"{sys.platform} is not Linux")
    wanted = re.compile(re.escape(bytes(_Pointer(_address_of(_LIBC.listen)))))
    slots: list[int] = []
    with_code: set[str] = set()  # libraries whose data follows
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        # Addresses, rights, offset, device, inode, and the path of a mapped file.
        addresses, rights, *_, path = line.split(maxsplit=5)
        if not Path(path).name.startswith(_LIBRARIES):
            continue
        if "x" in rights:
            with_code.add(path)
        elif path in with_code and "r" in rights:
            first, end = (int(address, 16) for address in addresses.split("-"))
            data = (ctypes.c_char * (end - first)).from_address(first)
            slots += (first + match.start() for match in wanted.finditer(data))
    if not slots:
        raise OSError(f"no loaded {_LIBRARIES}*.so calls listen")
    return slots


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _point(slots: Sequence[int], function: Any) -> None:
    for slot in slots:
        page = ctypes.c_void_p(slot & -mmap.PAGESIZE)
        rights = mmap.PROT_READ | mmap.PROT_WRITE  # some builds protect their tables
        if _LIBC.mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), rights):
            error = ctypes.get_errno()
            raise OSError(error, f"mprotect: {os.strerror(error)}")
        _Pointer.from_address(slot).value = _address_of(function)


# A listening socket gets a kernel filter (classic BPF, ``SO_ATTACH_FILTER``; Linux, no
# privileges needed): a packet whose source is not in an allowed network is dropped
# before a connection exists, as by a firewall.

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))

_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>; Python has no name for it
_TRY_SEC = 0.2
# Classic BPF (Linux, Documentation/networking/filter.rst).
_LOAD_BYTE, _LOAD_WORD = 0x30, 0x20
_AND, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x54, 0x74, 0x15, 0x06
_IP_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here are into the IP header
_SOURCES = {4: 12, 6: 8}  # where the header of a version has the source
_ACCEPT, _DROP = 0xFFFFFFFF, 0

# No connection of this machine to itself comes from there.
_NOBODY = ipaddress.ip_network("192.0.2.1/32")

Instruction = tuple[int, int, int, int]


def filter_program(networks: Sequence[Network]) -> list[Instruction]:
    """The filter: accepts packets from allowed networks, and drops all others."""
    drop: Instruction = (_RETURN, 0, 0, _DROP)
    v4, v6 = (
        [step for net in networks if net.version == v for step in _match(net)] + [drop]
        for v in (4, 6)
    )
    # A jump has eight bits, so the v6 part is behind a return.
    return [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),  # the version
        (_JUMP_IF_EQUAL, 0, len(v4), 4),
        *v4,
        *v6,
    ]


def _match(allowed: Network) -> list[Instruction]:
    """Accepts a packet whose source is in a network, or falls through."""
    address, mask = allowed.network_address.packed, allowed.netmask.packed
    code: list[Instruction] = [(_RETURN, 0, 0, _ACCEPT)]
    for offset in reversed(range(0, len(mask), 4)):
        word_mask, word = (
            int.from_bytes(packed[offset : offset + 4], "big")
            for packed in (mask, address)
        )
        if word_mask:
            load = _IP_HEADER + _SOURCES[allowed.version] + offset
            code = [
                (_LOAD_WORD, 0, 0, load),
                (_AND, 0, 0, word_mask),
                (_JUMP_IF_EQUAL, 0, len(code), word),
                *code,
            ]
    return code


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
def try_filters() -> None:
    """Tests that filters work on this system: sandboxes take one and ignore it."""
    if not sys.platform.startswith("linux"):
        raise OSError(f"{sys.platform} has none")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # An address that this machine's own connections do not come from.
        attach(listener, filter_program([_NOBODY]))
        if _accepts(listener):
            raise OSError("a filter that drops all did not")
        attach(listener, filter_program(LOOPBACK))
        if not _accepts(listener):
            raise OSError("a filter for this machine dropped it")


def _accepts(listener: socket.socket) -> bool:
    try:
        with socket.create_connection(listener.getsockname(), _TRY_SEC):
            return True
    except OSError:
        return False


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Networks that IANA's registries list as not globally reachable and that machines can
# be in. Written out, because ``is_private`` differs between versions of Python.
_NOT_GLOBAL = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    *("169.254.0.0/16", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24"),
    *("203.0.113.0/24", "fc00::/7", "fe80::/10"),
)
PRIVATE = LOOPBACK + tuple(map(ipaddress.ip_network, _NOT_GLOBAL))
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
    """The smallest set of hosts that must be able to reach this process's port."""
    # This machine, if all addresses of the cluster are loopback addresses. A name that
    # cannot be resolved yet counts as private.
    if config.i_trust_this_network:
        return Reach.ANY
    reaches = [
        reach_of_address(
            address,
            f"address {address!r} of the cluster",
            "every host that can reach the port of a TensorFlow server can run any "
            "operation there, such as writing files; use the private addresses of the "
            "machines; if a firewall or a security group blocks untrusted hosts, "
            "declare it in every process",
        )
        for of_kind in config.addresses.values()
        for address in of_kind
    ]
    return Reach.PRIVATE if Reach.PRIVATE in reaches else Reach.MACHINE


def reach_of_address(address: str, name: str, advice: str) -> Reach:
    """This machine for a loopback address, private networks otherwise."""
    ips = list(map(str, resolve(address)))
    public = [ip for ip in ips if not allows(PRIVATE, ip)]
    if public:
        raise ClusterConfigError(
            f"{name} is public ({', '.join(public)}), but {advice}: {HOW_TO_TRUST}"
        )
    is_machine = bool(ips) and all(allows(LOOPBACK, ip) for ip in ips)
    return Reach.MACHINE if is_machine else Reach.PRIVATE


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
    ip = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return mapped or ip


def is_address(text: str) -> bool:
    try:
        plain(text)
    except ValueError:
        return False
    return True


def allows(networks: Iterable[Network], address: str) -> bool:
    """Whether an IP address is in one of the networks."""
    return any(plain(address) in network for network in networks)


@contextlib.contextmanager
def guarded(config: ClusterConfig) -> Iterator[None]:
    """Filters the port of this process, which TensorFlow opens inside."""
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
            listening.enter_context(before_listen(filter_it))
        except OSError as error:
            raise _unprotected(reach, error) from error
        yield
    if port not in ports:
        raise _unprotected(reach, f"TensorFlow listened at {ports}, not at {port}")


def restrict(listener: socket.socket, reach: Reach) -> None:
    """Makes a listening socket drop packets from networks that are not allowed."""
    if reach is not Reach.ANY:
        attach(listener, filter_program(reach.networks))


def check(config: ClusterConfig) -> Reach:
    """Returns which hosts may reach this process's port, if that can be enforced."""
    reach = reach_of(config)
    check_system(reach)
    return reach


def check_system(reach: Reach) -> None:
    """Tests that filters work on this system, if they are needed."""
    if reach is Reach.ANY:
        return
    try:
        try_filters()
    except OSError as error:
        raise _unprotected(reach, error) from error


def _unprotected(reach: Reach, why: object) -> ClusterError:
    return ClusterError(
        "TensorFlow's server listens on all interfaces, and every host that can reach "
        "its port can run any operation there; the filter that restricts it to "
        f"{reach.value} does not work on this system ({why}); if a firewall blocks "
        f"untrusted hosts, declare it: {HOW_TO_TRUST}"
    )
