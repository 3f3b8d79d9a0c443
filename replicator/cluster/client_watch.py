"""The watch over the client, from the side of its servers: here it is, there it went.

The client listens, as part of the cluster, from when it connects until it ends in
whatever way. A server holds a connection to it, which the client's kernel closes in
that moment, and remembers who it is, so that another process which listens at its port
afterwards is not taken for it.
"""

from __future__ import annotations

import contextlib
import time

from replicator.cluster.peer import Link
from replicator.errors import UnreachableError

# A client whose port is closed, or another process's, has left; a machine that is
# silent may be unreachable for a moment.
CLOSED_SEC = 2.0
NO_RESPONSE_SEC = 10.0  # on top of what the connection needs to notice it
_POLL_SEC = 0.2
_READ_SEC = 60.0
_CONNECT_SEC = 2.0
LEFT = "the client left"


class ClientWatch:
    """One server's watch over its client."""

    def __init__(self, name: str, address: str) -> None:
        """Watches nobody yet.

        Args:
          name: How messages call the client.
          address: Where it listens.
        """
        self._name = name
        self._address = address
        self._identity: frozenset[int] | None = None
        self._link: Link | None = None

    def wait_for(self, timeout_sec: float) -> None:
        """Waits until the client is there, and remembers who it is.

        Raises:
          UnreachableError: It did not come in time.
        """
        deadline = time.monotonic() + timeout_sec
        found_instead = ""
        while True:
            left_sec = max(deadline - time.monotonic(), _POLL_SEC)
            try:
                link = Link(self._address, _CONNECT_SEC)
            except OSError:
                pass  # not there yet
            else:
                found_instead = self._is_client(link, left_sec)
                if not found_instead:
                    return
                link.close()
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"the client, {self._name}, did not appear within {timeout_sec:g} "
                    f"s{found_instead}; start the training program there with the same "
                    "TF_CONFIG, or wait longer with --client-timeout-sec"
                )
            time.sleep(_POLL_SEC)

    def _is_client(self, link: Link, timeout_sec: float) -> str:
        """Remembers a link if it is one to a client; else says what is there."""
        what = "says nothing"
        try:
            self._identity = link.wait_for_identity(timeout_sec)
        except OSError as error:
            what = str(error)
        if self._identity is not None:
            self._link = link
            return ""
        return f" (another process listens at its address, but {what})"

    def wait_until_left(self) -> str:
        """Waits until the client has ended; returns what is known about it."""
        reason = ""
        while not reason:
            assert self._link is not None
            with contextlib.closing(self._link) as link:
                _wait_until_lost(link)
            reason = self._find_again()
        return reason

    def _find_again(self) -> str:
        """Connects to the client again; says why it has left, or nothing if it has not.

        A connection can be lost without the client.
        """
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
                    f"{LEFT}: its machine does not answer",
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
                # A server that speaks may be busy; one that only accepts is none.
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
