"""Whether processes of a cluster can be connected to; every wait is bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from replicator.cluster.configuration import split_address
from replicator.errors import PortInUseError, UnreachableError

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
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            raise PortInUseError(
                f"port {port} of this process ({address}) is in use: {error.strerror}; "
                "stop the process that listens there (perhaps an earlier run), or set "
                "another port in TF_CONFIG on every process"
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
    """Calls a function from another thread when a block takes too long.

    It is for the sequential blocks of one thread. Entering and leaving a block is
    cheap: the watching thread wakes up when a timeout may have expired, not per block.
    """

    def __init__(self, expire: Callable[[], None]) -> None:
        self._expire = expire
        self._condition = threading.Condition()
        self._end: float | None = None
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
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
