"""Servers watch their client: they wait for it to start and detect that it has exited.

As part of the cluster, the client listens from when it connects until it exits, in
whatever way. A server keeps a connection to it, which the client's kernel closes at
that moment, and records the client's identity, so that another process that listens at
its port later is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import time

from replicator.cluster.liveness.peer import Link
from replicator.errors import UnreachableError

# A client has exited if its port is closed or belongs to another process; a machine
# that does not respond may be unreachable for a moment only.
CLOSED_SEC = 2.0
NO_RESPONSE_SEC = 10.0  # on top of the time that the connection needs to fail
_POLL_SEC = 0.2
_READ_SEC = 60.0
_CONNECT_SEC = 2.0
LEFT = "the client has exited"


class ClientWatch:
    """Watches the client of one server."""

    def __init__(self, name: str, address: str) -> None:
        """Stores the client; ``wait_for`` starts to watch it.

        Args:
          name: Name of the client in messages.
          address: Where it listens.
        """
        self._name = name
        self._address = address
        self._identity: frozenset[int] | None = None
        self._link: Link | None = None

    def wait_for(self, timeout_sec: float) -> None:
        """Waits until the client listens, and records its identity.

        Raises:
          UnreachableError: It did not start in time.
        """
        deadline = time.monotonic() + timeout_sec
        found_instead = ""
        while True:
            left_sec = max(deadline - time.monotonic(), _POLL_SEC)
            try:
                link = Link(self._address, _CONNECT_SEC)
            except OSError:  # nobody listens there: the client starts later
                pass
            else:
                found_instead = self._is_client(link, left_sec)
                if not found_instead:
                    return
                link.close()
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"the client, {self._name}, did not start within {timeout_sec:g} "
                    f"s{found_instead}; start the training program there with the same "
                    "TF_CONFIG, or increase --client-timeout-sec"
                )
            time.sleep(_POLL_SEC)

    def _is_client(self, link: Link, timeout_sec: float) -> str:
        """Keeps a link if it leads to a client; otherwise says what listens there."""
        what = "does not respond"
        try:
            self._identity = link.wait_for_identity(timeout_sec)
        except OSError as error:
            what = str(error)
        if self._identity is not None:
            self._link = link
            return ""
        return f" (another process listens at its address; it {what})"

    def wait_until_left(self) -> str:
        """Waits until the client has exited; returns the reason, if known."""
        reason = ""
        while not reason:
            assert self._link is not None
            with contextlib.closing(self._link) as link:
                _wait_until_lost(link)
            reason = self._find_again()
        return reason

    def _find_again(self) -> str:
        """Connects to the client again; returns why it is lost, or an empty string.

        A connection can break although the client still runs.
        """
        # More than one attempt: what broke the connection may be a network that takes a
        # moment, and to take that for the client's end would end the job.
        lost = time.monotonic()
        limit_sec, reason = CLOSED_SEC, LEFT
        while time.monotonic() - lost < limit_sec:
            try:
                link = Link(self._address, _CONNECT_SEC)
            except ConnectionRefusedError:
                limit_sec, reason = CLOSED_SEC, LEFT
            except OSError:
                limit_sec, reason = (
                    NO_RESPONSE_SEC,
                    f"{LEFT}: its machine does not respond",
                )
            else:
                found = self._identify(link, lost)
                if found == self._identity:
                    self._link = link
                    return ""
                link.close()
                limit_sec = CLOSED_SEC
                reason = f"{LEFT}, and another process listens at its address"
                if found:
                    return reason
            time.sleep(_POLL_SEC)
        return reason

    def _identify(self, link: Link, lost: float) -> frozenset[int] | None:
        try:
            while link.identity is None:
                # A server that responds may be busy; one that only accepts is not a
                # TensorFlow server.
                limit_sec = NO_RESPONSE_SEC if link.is_grpc_server else CLOSED_SEC
                left_sec = lost + limit_sec - time.monotonic()
                if left_sec <= 0:
                    return None
                link.read(left_sec)
        except OSError:
            return None
        return link.identity


def _wait_until_lost(link: Link) -> None:
    with contextlib.suppress(OSError):
        while True:
            link.read(_READ_SEC)
