"""Whether processes of a cluster can be reached, are the same as before, and well."""

from __future__ import annotations

import math
import os
import re
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import tensorflow as tf

from replicator import errors
from replicator._tf import workers as _tf_workers
from replicator.cluster import port_filter
from replicator.cluster.configuration import join_address, split_address

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
            with suppress(OSError):
                Link(address, min(_CONNECT_SEC, left_sec)).close()
                del missing[name]
        if not missing:
            return
        if time.monotonic() >= deadline:
            names = ", ".join(f"{n} at {address}" for n, address in missing.items())
            raise errors.UnreachableError(
                f"no response from {len(missing)} of {num_all} processes within "
                f"{timeout_sec:g} s: {names}; check that they were started, that "
                "TF_CONFIG has the same addresses everywhere, and that no firewall "
                "blocks them; a larger timeout_sec waits longer"
            )
        time.sleep(_POLL_SEC)


def listen(address: str, backlog: int | None = None) -> socket.socket:
    """Listens at the port of this process, if nothing else does."""
    port = split_address(address)[1]
    # TensorFlow's server listens on all interfaces and does not share its port.
    try:
        return socket.create_server(("", port), backlog=backlog)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise errors.PortInUseError(
            f"port {port} of this process ({address}) is in use: {why}; stop the "
            "process that listens there (perhaps an earlier run), or set another port "
            "in TF_CONFIG on every process"
        ) from error


def check_port_is_free(address: str) -> None:
    listen(address).close()


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
        self._end = math.inf
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
                self._end = math.inf

    def _watch(self) -> None:
        while True:
            with self._condition:
                now = time.monotonic()
                wait_sec = min(self._end - now, _IDLE_SEC)
                if wait_sec > 0:
                    # A block with an earlier deadline wakes this thread.
                    self._next_look = now + wait_sec
                    self._condition.wait(wait_sec)
                    continue
                self._end = math.inf
            self._expire()


# An open port says little: after a process has exited, another one may listen there.
# The kernel closes a connection when the process at the other end exits in whatever
# way, and keeps it while that process is busy or stopped. If it breaks for another
# reason, the server must give its identity: the incarnations of its devices, which are
# random. docs/design.md says why they are asked for at TensorFlow's own port.

# How an HTTP/2 client begins, with empty settings, and confirms the server's
# (RFC 9113, 3.4). A gRPC server that is alive responds with its own settings, however
# busy it is; without calls, it then waits for as long as the connection is open.
_SETTINGS, _CONFIRMED = (bytes([0, 0, 0, 4, flags, 0, 0, 0, 0]) for flags in (0, 1))
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS
_GET_STATUS = "/tensorflow.WorkerService/GetStatus"
# With these, a machine that vanishes without closing is detected after 8 + 3 * 4 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 8, "TCP_KEEPINTVL": 4, "TCP_KEEPCNT": 3}
_HAS_CLOSED = getattr(select, "POLLRDHUP", 0)  # errors are reported in any case


class Link:
    """A connection to a server that is kept open."""

    def __init__(self, address: str, timeout_sec: float) -> None:
        """Connects; raises an ``OSError`` if it cannot."""
        self._socket = socket.create_connection(split_address(address), timeout_sec)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if option := getattr(socket, name, None):  # not all systems have them
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        self._socket.close()

    def is_open(self, timeout_sec: float = 0.0) -> bool:
        """Whether the other end holds the connection, until the timeout."""
        poll = select.poll()
        poll.register(self._socket, _HAS_CLOSED)
        return not poll.poll(1000 * timeout_sec)

    def responds(self, timeout_sec: float) -> bool:
        """Whether a gRPC server responds in time; an ``OSError`` if it is none."""
        self._socket.settimeout(timeout_sec)
        try:
            self._socket.sendall(_HELLO)
            frame = self._socket.recv(len(_SETTINGS))
        except TimeoutError:
            return False
        if not frame:
            raise ConnectionResetError("closed the connection")
        if frame[3:4] != _SETTINGS[3:4]:
            raise ConnectionError("does not speak HTTP/2")
        self._socket.sendall(_CONFIRMED)
        return True

    def identity(self, timeout_sec: float) -> frozenset[int] | None:
        """What is unique to the server process; None if it takes too long to say."""
        import grpc  # takes a while, and is needed in clusters only

        # Its threads end with the channel, so that none is there beside a step.
        address = join_address(*self._socket.getpeername()[:2])
        with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
            try:
                status = channel.unary_unary(_GET_STATUS)(b"", timeout=timeout_sec)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return None
                status = b""
        if found := _tf_workers.incarnations(status):
            return found
        raise ConnectionError("is not a TensorFlow server")


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
        while self._link is not None:
            if not self._link.is_open(_IDLE_SEC):
                self._hang_up()

    def has_ended(self) -> bool:
        """Whether it is known to have exited: not slow, stopped, or unreachable."""
        if self._link is not None and self._link.is_open():
            return False
        self._hang_up()
        # The kernel keeps the connection to a process that is busy or stopped, so a
        # lost one means little by itself: a network may have dropped it. Only a closed
        # port, or another process at the same one, proves the end.
        self.found_instead = ""
        try:
            self._link = link = Link(self._address, _CONNECT_SEC)
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        identity: frozenset[int] | None = None
        is_closed = is_server = False
        self.found_instead = "does not respond"
        try:
            if is_server := link.responds(_ANSWER_SEC):
                identity = link.identity(_ANSWER_SEC)
        except OSError as error:
            is_closed, self.found_instead = True, str(error)
        if identity is not None and self._identity in (None, identity):
            self._identity = identity
            return False
        self._hang_up()
        if self._identity is None:
            return False  # its identity was never recorded
        # A gRPC server may be busy. A process that only accepts is stopped or a
        # different one; but the kernel has closed the connection to the recorded one.
        return bool(identity) or is_closed or not is_server

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None


def answers(address: str, timeout_sec: float) -> bool:
    """Whether a gRPC server responds; the kernel accepts for one that hangs, too."""
    with suppress(OSError), closing(Link(address, timeout_sec)) as link:
        return link.responds(timeout_sec)
    return False


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
            raise errors.WorkerLostError(f"{self._lost_names()}; {_WHAT_TO_DO}")

    def explain(self, error: BaseException) -> errors.ClusterError | None:
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
        return errors.WorkerLostError(f"{reason}; {_WHAT_TO_DO}")

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
