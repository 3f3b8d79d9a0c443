"""Failure detection for servers, so that no call waits for a lost server forever.

A process that is killed closes its connections, and calls to it fail at once. A machine
that vanishes, or a process that hangs, closes nothing: TensorFlow would wait for its
response forever. So a thread of the client polls every server, and closes the
connections to a server that has not responded for too long.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.cluster.configuration import split_address
from replicator.cluster.liveness.peer import answers
from replicator.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DETECTION_TIMEOUT_SEC = 30.0
_POLL_SEC = 1.0
_ANSWER_SEC = 2.0
_MIN_FAILURES = 3
_WHAT_TO_DO = (
    "restart the whole cluster (client and servers), and restore the last checkpoint; "
    "see the end of that worker's output for the cause"
)
# Errors that do not come from a lost worker, unless they mention its lost state.
_OWN_ERRORS = (tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError)
_LOST_STATE = "context_id"


class WorkerWatch:
    """This process's watch over its servers; a ``FailureDetector`` each may use it."""

    def __init__(self, servers: Mapping[str, tuple[str, str]]) -> None:
        # By device prefix of a server that was given up, its name and the seconds that
        # it exceeded. Its connection is closed: it is lost for all replicators.
        self.lost: dict[str, tuple[str, float]] = {}
        # By device prefix, the name of the worker in messages, and its address.
        self.servers = dict(servers)
        self._detectors: weakref.WeakSet[FailureDetector] = weakref.WeakSet()
        if servers:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def add(self, detector: FailureDetector) -> None:
        """Lets a detector's timeout count for as long as the detector lives."""
        self._detectors.add(detector)

    def timeout_sec(self) -> float:
        """How long a server may not respond before it is lost.

        The shortest timeout of those that wait for an answer. While none does, the
        longest of all: what one replicator has to bear must not end another's calls.
        """
        detectors = list(self._detectors)
        waiting = [d.timeout_sec for d in detectors if d.is_waiting]
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
            time.sleep(_POLL_SEC)


class FailureDetector:
    """One replicator's failure detection."""

    def __init__(self, watch: WorkerWatch, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self._watch = watch
        self._num_waiting = 0
        watch.add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether a call that needs the servers is in progress."""
        return self._num_waiting > 0

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turns TensorFlow's errors about a lost worker into one that names it."""
        if self._watch.lost:
            raise WorkerLostError(f"{self._lost_names()}; {_WHAT_TO_DO}")
        self._num_waiting += 1
        try:
            yield
        except tf.errors.OpError as error:
            reason = self._explain(error)
            if reason is None:
                raise
            raise WorkerLostError(f"{reason}; {_WHAT_TO_DO}") from error
        finally:
            self._num_waiting -= 1

    def explains(self, error: Any) -> bool:
        """Whether an error of a call comes from a worker that is lost."""
        return isinstance(error, tf.errors.OpError) and bool(self._explain(error))

    def _explain(self, error: Any) -> str | None:
        text = str(error)
        if isinstance(error, _OWN_ERRORS) and _LOST_STATE not in text:
            return None
        if self._watch.lost:
            return self._lost_names()
        servers = self._watch.servers
        silent = [
            name
            for name, address in servers.values()
            if not answers(address, _ANSWER_SEC)
        ]
        if silent:
            return f"{', '.join(silent)} was lost during a step"
        if isinstance(error, tf.errors.UnavailableError) or _LOST_STATE in text:
            named = set(re.findall(r"/job:\w+/replica:0/task:\d+", text))
            names = [servers[n][0] for n in sorted(named & set(servers))]
            return f"{' or '.join(names) or 'a worker'} was restarted during a step"
        return None

    def _lost_names(self) -> str:
        lost = self._watch.lost.values()
        names = ", ".join(name for name, _ in lost)
        return f"no response from {names} for {max(sec for _, sec in lost):g} s"


def close_connections(address: str) -> None:
    """Closes this process's connections to an address: its calls fail at once."""
    name, port = split_address(address)
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        return
    peers = {_plain(info[4]) for info in found}
    for descriptor in _socket_descriptors():
        with contextlib.suppress(OSError):
            copy = os.dup(descriptor)
            try:
                connection = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with connection:
                if _plain(connection.getpeername()) in peers:
                    connection.shutdown(socket.SHUT_RDWR)


def _socket_descriptors() -> list[int]:
    folder = Path("/proc/self/fd")
    descriptors = []
    for entry in (folder if folder.exists() else Path("/dev/fd")).iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                descriptors.append(int(entry.name))
    return descriptors


def _plain(address: Any) -> tuple[str, int] | None:
    """Address and port; an IPv4-mapped IPv6 address becomes IPv4."""
    if not isinstance(address, tuple):
        return None
    return str(address[0]).removeprefix("::ffff:"), int(address[1])
