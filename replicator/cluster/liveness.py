"""Whether processes of a cluster can be reached, are the same as before, and well."""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import threading
import time
import weakref
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator.cluster import port_filter
from replicator.cluster.configuration import split_address
from replicator.errors import (
    ClusterError,
    PortInUseError,
    UnreachableError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_POLL_SEC = 0.1
_CONNECT_SEC = 1.0


def wait_for(
    addresses: Mapping[str, Sequence[str]], timeout_sec: float, *, own: str = ""
) -> None:
    """Waits until every process accepts connections."""
    missing = {
        f"{kind} {index}": address
        for kind, of_kind in addresses.items()
        for index, address in enumerate(of_kind)
        if address != own
    }
    num_all = len(missing)
    deadline = time.monotonic() + timeout_sec
    while True:
        for name, address in list(missing.items()):
            left_sec = max(deadline - time.monotonic(), 0.01)
            if accepts(address, min(_CONNECT_SEC, left_sec)):
                del missing[name]
        if not missing:
            return
        if time.monotonic() >= deadline:
            names = ", ".join(f"{n} at {address}" for n, address in missing.items())
            raise UnreachableError(
                f"no response from {len(missing)} of {num_all} processes within "
                f"{timeout_sec:g} s: {names}; check that they were started, that "
                "TF_CONFIG has the same addresses everywhere, and that no firewall "
                "blocks them; a larger timeout_sec waits longer"
            )
        time.sleep(_POLL_SEC)


def check_port_is_free(address: str) -> None:
    """Makes sure that this process can listen at its address."""
    port = split_address(address)[1]
    # TensorFlow's server listens on all interfaces and does not share its port.
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise PortInUseError(
            f"port {port} of this process ({address}) is in use: {why}; stop the "
            "process that listens there (perhaps an earlier run), or set another port "
            "in TF_CONFIG on every process"
        ) from error


def accepts(address: str, timeout_sec: float) -> bool:
    """Whether anything accepts a connection at an address within a time."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout_sec):
            return True
    except OSError:
        return False


# TensorFlow's own timeout, ``timeout_seconds`` of a collective op, starts a thread per
# op that sleeps until the timeout even if the op finishes at once: with a timeout of
# 300 s, fifty collectives per second amount to 15,000 threads, and the process aborts.

_IDLE_SEC = 3600.0


class Deadline:
    """Calls a function from another thread when a block of this one takes too long.

    Entering and leaving a block is cheap: it wakes no thread.
    """

    def __init__(self, expire: Callable[[], None]) -> None:
        self._expire = expire
        self._condition = threading.Condition()
        self._end: float | None = None
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, sec: float) -> Iterator[None]:
        end = time.monotonic() + sec
        with self._condition:
            self._end = end
            if end < self._next_look:
                self._condition.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="replicator_deadline", daemon=True
            )
            self._thread.start()
        try:
            yield
        finally:
            with self._condition:
                self._end = None

    def _watch(self) -> None:
        while True:
            with self._condition:
                now, end = time.monotonic(), self._end
                is_over = end is not None and now >= end
                if is_over:
                    self._end = None
                else:
                    # A block with an earlier deadline wakes this thread.
                    wait_sec = _IDLE_SEC if end is None else end - now
                    self._next_look = now + wait_sec
                    self._condition.wait(wait_sec)
            if is_over:
                self._expire()


# An open port says little: after a process has exited, another one may listen there.
# The kernel closes a connection when the process at the other end exits in whatever
# way, and keeps it while that process is busy or stopped. If it breaks for another
# reason, the server must give its identity: the incarnations of its devices, which are
# random.
#
# They are asked for at TensorFlow's own port, by gRPC over HTTP/2 (RFC 9113) as far as
# a call needs it: docs/design.md says why.

# How an HTTP/2 client begins (RFC 9113, 3.4), with empty settings. A gRPC server that
# is alive responds with its own settings, however busy it is.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_STREAM, _HEADER_BYTES, _MAX_FRAME_BYTES = 1, 9, 16384
_HEADER = struct.Struct(">IBBI")  # of a frame, after a byte: its length has three
_MAX_ANSWER_BYTES = 65535  # HTTP/2's initial flow-control window
# With these, a machine that vanishes without closing is detected after 8 + 3 * 4 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 8, "TCP_KEEPINTVL": 4, "TCP_KEEPCNT": 3}


class NotAServerError(ConnectionError):
    """The process that listens at an address is not a TensorFlow server."""


class Link:
    """A connection to a TensorFlow server that is kept open."""

    def __init__(self, address: str, timeout_sec: float) -> None:
        """Connects, and asks for the identity; raises an ``OSError`` if it cannot."""
        self.is_grpc_server = False  # until it has responded as one
        self.identity: frozenset[int] | None = None  # unique to this server process
        self._unread = self._answer = b""
        self._socket = socket.create_connection(split_address(address), timeout_sec)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if option := getattr(socket, name, None):  # not all systems have them
                    self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self._socket.sendall(_question(address))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def is_open(self) -> bool:
        """Whether the other end holds the connection; closes it if not."""
        try:
            while self.read(0.0):
                pass
        except OSError:
            self.close()
            return False
        return True

    def read(self, timeout_sec: float) -> bool:
        """Whether data arrives in time; an ``OSError`` if the other end is lost."""
        if not select.select([self._socket], [], [], timeout_sec)[0]:
            return False
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionResetError("closed the connection")
        self._unread += received
        while len(self._unread) >= _HEADER_BYTES:
            header = b"\0" + self._unread[:_HEADER_BYTES]
            length, kind, flags, stream = _HEADER.unpack(header)
            # The first frame of a server is its settings (RFC 9113, 3.4).
            is_known = self.is_grpc_server or kind == _SETTINGS
            if not is_known or length > _MAX_FRAME_BYTES:
                raise NotAServerError("does not speak HTTP/2")
            end = _HEADER_BYTES + length
            if len(self._unread) < end:
                break
            payload, self._unread = self._unread[_HEADER_BYTES:end], self._unread[end:]
            self._take(kind, flags, stream, payload)
        return True

    def wait_for_identity(self, timeout_sec: float) -> frozenset[int] | None:
        """Waits for the identity of the other end; None after the timeout."""
        deadline = time.monotonic() + timeout_sec
        while self.identity is None and (left_sec := deadline - time.monotonic()) > 0:
            self.read(left_sec)
        return self.identity

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.is_grpc_server = True
            echo = payload if kind == _PING else b""
            self._socket.sendall(_frame(kind, _ACK, 0, echo))
        elif stream == _STREAM and self.identity is None:
            if kind == _DATA:
                self._answer += payload
            if len(self._answer) > _MAX_ANSWER_BYTES:
                raise NotAServerError("sends more than was requested")
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                from replicator._tf import workers

                self.identity = workers.incarnations(self._answer[5:])
                if not self.identity:
                    raise NotAServerError("is not a TensorFlow server")


class Peer:
    """Another process of the cluster: its address and recorded identity."""

    def __init__(self, address: str) -> None:
        """Records its identity unless it is slow or does not run yet."""
        self.found_instead = ""  # what another process at its address does
        self._address = address
        self._identity: frozenset[int] | None = None
        self._link: Link | None = None
        self.has_ended()

    @property
    def is_met(self) -> bool:
        """Whether a connection to the recorded process is held."""
        return self._link is not None

    def wait_until_lost(self) -> None:
        """Waits until the connection breaks."""
        assert self._link is not None
        with closing(self._link) as link, suppress(OSError):
            while True:
                link.read(_IDLE_SEC)
        self._link = None

    def has_ended(self) -> bool:
        """Whether it is known to have exited: not slow, stopped, or unreachable."""
        if self._link is not None and self._link.is_open():
            return False
        self._link, self.found_instead = None, ""
        # The kernel keeps the connection to a process that is busy or stopped, so a
        # lost one means little by itself: a network may have dropped it. Only a closed
        # port, or another process at the same one, proves the end.
        try:
            link = Link(self._address, _CONNECT_SEC)
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        identity: frozenset[int] | None = None
        is_closed, self.found_instead = False, "does not respond"
        try:
            identity = link.wait_for_identity(_ANSWER_SEC)
        except OSError as error:
            is_closed, self.found_instead = True, str(error)
        if identity is not None and self._identity in (None, identity):
            self._identity, self._link = identity, link
            return False
        link.close()
        if self._identity is None:
            return False  # its identity was never recorded
        # A gRPC server may be busy. A process that only accepts is stopped or a
        # different one; but the kernel has closed the connection to the recorded one.
        return bool(identity) or is_closed or not link.is_grpc_server


def answers(address: str, timeout_sec: float) -> bool:
    """Whether a gRPC server responds; the kernel accepts for one that hangs, too."""
    deadline = time.monotonic() + timeout_sec
    with suppress(OSError), closing(Link(address, timeout_sec)) as link:
        while not link.is_grpc_server and (left := deadline - time.monotonic()) > 0:
            link.read(left)
        return link.is_grpc_server
    return False


def _question(address: str) -> bytes:
    """A client's first frames, with a call of ``GetStatus`` without arguments."""
    # Headers in literal form (RFC 7541, 6.2.2), except for two of the static table.
    fields = {
        b"\x04": b"/tensorflow.WorkerService/GetStatus",
        b"\x01": address.encode()[:100],  # :authority
        b"\x00\x02te": b"trailers",  # codespell:ignore te
        b"\x0f\x10": b"application/grpc",  # content-type
    }
    headers = b"\x83\x86"  # :method: POST, :scheme: http
    for name, value in fields.items():
        headers += name + bytes([len(value)]) + value
    call = _frame(_HEADERS, _END_HEADERS, _STREAM, headers)
    return _HELLO + call + _frame(_DATA, _END_STREAM, _STREAM, bytes(5))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), kind, flags, stream)[1:] + payload


DETECTION_TIMEOUT_SEC = 30.0
_WATCH_POLL_SEC = 1.0
_ANSWER_SEC = 2.0
_MIN_FAILURES = 3
_WHAT_TO_DO = (
    "restart the whole cluster (client and servers), and restore the last checkpoint; "
    "see the end of that worker's output for the cause"
)

# A process that is killed closes its connections, and calls to it fail at once. A
# machine that vanishes, or a process that hangs, closes nothing, and TensorFlow would
# wait forever. So a thread polls every server, and closes the connections to one that
# has not responded for too long.

# Errors that do not come from a lost worker, unless they mention its lost state.
_OWN_ERRORS = (tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError)
_LOST_STATE = "context_id"


class WorkerWatch:
    """This process's watch over its servers, for each ``FailureDetector``."""

    def __init__(self, servers: Mapping[str, tuple[str, str]]) -> None:
        # By device prefix of a server that was given up, its name and the seconds that
        # it exceeded. Its connection is closed: it is lost for all replicators.
        self.lost: dict[str, tuple[str, float]] = {}
        # By device prefix, the name of the worker in messages, and its address.
        self.servers = dict(servers)
        self.detectors: weakref.WeakSet[FailureDetector] = weakref.WeakSet()
        if servers:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def timeout_sec(self) -> float:
        """How long a server may not respond before it is lost."""
        detectors = list(self.detectors)
        # While none waits, one replicator's timeout must not end another's calls.
        waiting = [d.timeout_sec for d in detectors if d.num_waiting]
        if waiting:
            return min(waiting)
        return max((d.timeout_sec for d in detectors), default=DETECTION_TIMEOUT_SEC)

    def _watch(self) -> None:
        last_answer = dict.fromkeys(self.servers, time.monotonic())
        num_failures = dict.fromkeys(self.servers, 0)
        while True:
            for server, (name, address) in self.servers.items():
                if server in self.lost:
                    # TensorFlow keeps reconnecting to a server that only hangs.
                    close_connections(address)
                # Connecting is not enough: the kernel accepts for a process that hangs.
                elif answers(address, _ANSWER_SEC):
                    last_answer[server] = time.monotonic()
                    num_failures[server] = 0
                else:
                    num_failures[server] += 1
                    no_response_sec = time.monotonic() - last_answer[server]
                    timeout_sec = self.timeout_sec()
                    # Also a minimum count: this process itself may have been suspended.
                    is_long = no_response_sec > timeout_sec
                    if is_long and num_failures[server] >= _MIN_FAILURES:
                        self.lost[server] = name, timeout_sec
                        close_connections(address)
            time.sleep(_WATCH_POLL_SEC)


class FailureDetector:
    """One replicator's failure detection."""

    def __init__(self, watch: WorkerWatch, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self.num_waiting = 0  # calls that need the servers, in progress
        self._watch = watch
        watch.detectors.add(self)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turns TensorFlow's errors about a lost process into one that names it."""
        self.check()
        self.num_waiting += 1
        try:
            yield
        except tf.errors.OpError as error:
            lost = self.explain(error)
            if lost is None:
                raise
            raise lost from error
        finally:
            self.num_waiting -= 1

    def check(self) -> None:
        """Raises the error of a process that was found to be lost."""
        if self._watch.lost:
            raise WorkerLostError(f"{self._lost_names()}; {_WHAT_TO_DO}")

    def explain(self, error: BaseException) -> ClusterError | None:
        """The error that names the lost worker which an error comes from, or None."""
        text = str(error)
        has_lost_state = _LOST_STATE in text
        is_own = isinstance(error, _OWN_ERRORS) and not has_lost_state
        if is_own or not isinstance(error, tf.errors.OpError):
            return None
        servers = self._watch.servers
        if self._watch.lost:
            reason = self._lost_names()
        elif silent := [
            n for n, at in servers.values() if not answers(at, _ANSWER_SEC)
        ]:
            reason = f"{', '.join(silent)} was lost during a step"
        elif isinstance(error, tf.errors.UnavailableError) or has_lost_state:
            named = set(re.findall(r"/job:\w+/replica:0/task:\d+", text))
            names = [servers[n][0] for n in sorted(named & set(servers))]
            reason = f"{' or '.join(names) or 'a worker'} was restarted during a step"
        else:
            return None
        return WorkerLostError(f"{reason}; {_WHAT_TO_DO}")

    def _lost_names(self) -> str:
        lost = self._watch.lost.values()
        names = ", ".join(name for name, _ in lost)
        return f"no response from {names} for {max(sec for _, sec in lost):g} s"


def close_connections(address: str) -> None:
    """Closes this process's connections to an address: its calls fail at once."""
    port = split_address(address)[1]
    peers = [(ip, port) for ip in port_filter.resolve(address)]
    # Of sockets only: whoever closes a copy of a file's descriptor loses its locks.
    for entry in filter(Path.is_socket, Path("/dev/fd").iterdir()):
        # What is no connection has no other end, or one of another kind.
        with (
            suppress(OSError, ValueError),
            # Of any family: connections of gRPC are of IPv6, to addresses of IPv4 too.
            socket.socket(fileno=os.dup(int(entry.name))) as copy,
        ):
            host, its_port, *_ = copy.getpeername()
            if (port_filter.plain(str(host)), its_port) in peers:
                copy.shutdown(socket.SHUT_RDWR)
