"""Processes with a rank agree on the addresses of all, through the chief.

The process with rank 0 listens at an address that all were given. Every other one
connects, says its rank and a port that is free on its host, and gets back the addresses
of all. Free of TensorFlow; every wait is bounded.

::

    rank r -> chief   {"rank": r, "world_size": W, "port": p, "chief_host": h}
    chief -> rank r   {"addresses": ["10.0.0.1:20311", ...]}     or {"error": "..."}

A host's address is the one that its connection comes from. Processes on the chief's
host may reach it through the loopback interface; they get the address at which
processes on other hosts reach the chief.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from replicator import errors
from replicator.cluster import port_filter
from replicator.cluster.configuration import MAX_PORT, Ranks, join_address
from replicator.cluster.local_cluster import LineListener, reserved_ports

DEFAULT_TIMEOUT_SEC = 300.0
_POLL_SEC = 0.1
_CONNECT_SEC = 1.0
_MAX_MESSAGE_BYTES = 4096
_MAX_REPLY_BYTES = 2**24  # addresses of 65,536 processes with long names
_MOST_NAMED = 8


class Registration(NamedTuple):
    """What the chief knows of another process."""

    host: str  # where its connection comes from
    port: int  # where it will listen
    chief_host: str  # the address at which it reached the chief


def addresses_of(
    registered: Mapping[int, Registration], chief_port: int
) -> tuple[str, ...]:
    """The addresses of all processes, from what the others registered."""
    seen_at = [registered[rank].chief_host for rank in sorted(registered)]
    outside = [host for host in seen_at if not _is_loopback(host)]
    chief = (*outside, *seen_at, "127.0.0.1")[0]
    hosts = {0: (chief, chief_port)}
    for rank, (host, port, _) in registered.items():
        hosts[rank] = (chief if _is_loopback(host) else host, port)
    return tuple(join_address(*hosts[rank]) for rank in sorted(hosts))


def _is_loopback(host: str) -> bool:
    return port_filter.allows(port_filter.LOOPBACK, host)


def _parse_registration(
    line: bytes, host: str, world_size: int
) -> tuple[int, Registration] | None:
    """Reads what a process sent; None if that is not one of ours."""
    try:
        sent = json.loads(line)
        rank, size, port = (sent[name] for name in ("rank", "world_size", "port"))
        seen_at = str(sent["chief_host"])
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    # Not isinstance: true and false are integers, too.
    if {int} != {type(rank), type(size), type(port)}:
        return None
    if not 0 < port <= MAX_PORT or not port_filter.is_address(seen_at):
        return None
    if size != world_size:
        raise errors.ClusterConfigError(
            f"rank {rank} at {host} has a world size of {size}, the chief has"
            f" {world_size}: two jobs use the same MASTER_ADDR and MASTER_PORT, or the"
            " processes were started with different sizes; give every job its own port"
        )
    if not 0 < rank < world_size:
        raise errors.ClusterConfigError(
            f"a process at {host} has rank {rank}, which must be from 1 to"
            f" {world_size - 1}: the chief is rank 0 itself; number each process once"
        )
    return rank, Registration(host=host, port=port, chief_host=seen_at)


@functools.cache
def agree(
    ranks: Ranks, *, is_trusted: bool = False, timeout_sec: float = DEFAULT_TIMEOUT_SEC
) -> tuple[str, ...]:
    """The addresses of all processes, by rank; exchanged once per process."""
    # Bound until all have agreed, so that two processes of a host differ.
    with reserved_ports(1) as (port,):
        if ranks.world_size == 1:
            return addresses_of({}, port)
        if ranks.rank:
            return _register(ranks, port, timeout_sec)
        with contextlib.closing(_listen(ranks, is_trusted=is_trusted)) as listener:
            answer: dict[str, Any] = {}
            replies: list[socket.socket] = []
            try:
                registered = _collect(ranks, listener, replies, timeout_sec)
                answer["addresses"] = addresses_of(registered, port)
            except errors.ClusterError as error:
                answer["error"] = str(error)
                raise
            finally:
                for connection in replies if answer else ():
                    # One that has exited is noticed when the cluster is joined.
                    with contextlib.suppress(OSError):
                        _send(connection, answer)
            return tuple(answer["addresses"])


def _collect(
    ranks: Ranks,
    listener: LineListener,
    replies: list[socket.socket],
    timeout_sec: float,
) -> dict[int, Registration]:
    """The chief: waits for all others, to which it replies afterwards."""
    registered: dict[int, Registration] = {}
    deadline = time.monotonic() + timeout_sec
    while len(registered) < ranks.world_size - 1 and time.monotonic() < deadline:
        for connection, line in listener.read(_POLL_SEC):
            if line is None:  # a process that has gone: joining the cluster says so
                continue
            host = str(port_filter.plain(connection.getpeername()[0]))
            parsed = _parse_registration(line, host, ranks.world_size)
            if parsed is None:  # a stranger: a port scanner, a health check
                listener.drop(connection)
                continue
            rank, registration = parsed
            if rank in registered:
                raise errors.ClusterConfigError(
                    f"two processes have rank {rank}, at {registered[rank].host} and "
                    f"at {host}: number each process once, and give every job its own "
                    "MASTER_PORT"
                )
            listener.admit(connection)
            registered[rank] = registration
            replies.append(connection)
    missing = [str(r) for r in range(1, ranks.world_size) if r not in registered]
    if missing:
        more = ", ..." if len(missing) > _MOST_NAMED else ""
        raise errors.UnreachableError(
            f"no response from {len(missing)} of {ranks.world_size} processes within "
            f"{timeout_sec:g} s: ranks {', '.join(missing[:_MOST_NAMED])}{more}; check "
            "that they were started, with the same MASTER_ADDR and MASTER_PORT "
            f"({ranks.chief}), and that no firewall blocks it"
        )
    return registered


def _send(connection: socket.socket, message: dict[str, object]) -> None:
    connection.settimeout(_CONNECT_SEC)
    connection.sendall(json.dumps(message).encode() + b"\n")


def _listen(ranks: Ranks, *, is_trusted: bool) -> LineListener:
    reach = port_filter.Reach.ANY
    if not is_trusted:
        name = ranks.chief_host
        reach = port_filter.reach_of_address(
            ranks.chief,
            f"MASTER_ADDR={name!r}",
            "the servers of a cluster have no authentication; use the private address "
            "of that host, or, if a firewall blocks untrusted hosts, declare it in "
            "every process",
        )
        # A host name may stand for a loopback address on the host itself, and for
        # another address elsewhere; so only an explicit one means this machine.
        if name != "localhost" and not port_filter.is_address(name):
            reach = port_filter.Reach.PRIVATE
    port_filter.check_system(reach)
    try:
        listener = socket.create_server(
            ("", ranks.chief_port), backlog=socket.SOMAXCONN
        )
    except OSError as error:
        raise errors.PortInUseError(
            f"MASTER_PORT={ranks.chief_port} is in use on the host of rank 0:"
            f" {error.strerror}; stop the process that listens there (perhaps an"
            " earlier run), or set another port in every process"
        ) from error
    port_filter.restrict(listener, reach)
    return LineListener(listener, max_line_bytes=_MAX_MESSAGE_BYTES)


def _register(ranks: Ranks, port: int, timeout_sec: float) -> tuple[str, ...]:
    """Any other process: sends its port to the chief, and waits for the addresses."""
    deadline = time.monotonic() + timeout_sec
    reply = b""
    with _connect(ranks, timeout_sec) as connection:
        message = {
            "rank": ranks.rank,
            "world_size": ranks.world_size,
            "port": port,
            "chief_host": str(port_filter.plain(connection.getpeername()[0])),
        }
        try:
            _send(connection, message)
            # The chief waits as long; it says which processes are missing.
            left_sec = deadline + _CONNECT_SEC - time.monotonic()
            connection.settimeout(max(left_sec, 0.01))
            with connection.makefile("rb") as received:
                reply = received.readline(_MAX_REPLY_BYTES)
        except TimeoutError:
            raise errors.UnreachableError(
                f"the chief at {ranks.chief} did not send the addresses of"
                f" {ranks.world_size} processes within {timeout_sec:g} s; see its"
                " output: it names the processes that are missing"
            ) from None
        except OSError:  # reported as a closed connection
            pass
    if not reply.endswith(b"\n"):
        raise errors.UnreachableError(
            f"the chief at {ranks.chief} closed the connection before all"
            f" {ranks.world_size} processes had registered; see the output of rank 0"
        )
    answer = json.loads(reply)
    if "error" in answer:
        raise errors.ClusterConfigError(
            f"the chief at {ranks.chief} stopped: {answer['error']}"
        )
    return tuple(answer["addresses"])


def _connect(ranks: Ranks, timeout_sec: float) -> socket.socket:
    deadline, why = time.monotonic() + timeout_sec, "no time was left"
    while (left_sec := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection(
                (ranks.chief_host, ranks.chief_port), min(_CONNECT_SEC, left_sec)
            )
        except OSError as error:
            why = error.strerror or str(error)
        else:
            # A port of this process's own that happens to be the chief's: nobody
            # listens there yet.
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()
        time.sleep(_POLL_SEC)
    raise errors.UnreachableError(
        f"no response from rank 0 at {ranks.chief} (MASTER_ADDR:MASTER_PORT) within"
        f" {timeout_sec:g} s ({why}); check that it was started, that both variables"
        " are the same everywhere, and that no firewall blocks the port"
    )
