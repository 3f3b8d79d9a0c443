"""Where the members of a gang report how their processes ended."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import signal
import socket
from typing import Any

from harness.launch import engine
from replicator.cluster import port_filter
from replicator.cluster.local_cluster import LineListener


class MemberExits:
    """Where the members of a gang report, until it is closed.

    Attributes:
      secret: Known to processes of the trial only.
      codes: Exit codes of the processes that have ended, by place among the members.
      refused: Why a member did not start its process; empty if none refused.
      oom_kills: Kills for want of memory on the host of a process that has ended, while
        it ran, by place; absent where the member does not know.
      lost: Why the connection to a member counts as its end, by place.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.codes: dict[int, int] = {}
        self.refused: list[str] = []
        self.oom_kills: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self._tails: dict[int, str] = {}
        self._hosts: dict[int, str] = {}
        listener, self._port = _listen()
        self._listener = LineListener(listener, max_line_bytes=engine.MAX_LINE_BYTES)
        self._places: dict[socket.socket, int] = {}
        self._members: set[socket.socket] = set()

    @property
    def address(self) -> str:
        """Name of this host, and the port."""
        return f"{socket.gethostname()}:{self._port}"

    def texts(self) -> list[str]:
        """What members said, for the record of a failure."""
        tails = [
            f"-- process {place} on {self._hosts[place]}:\n{tail}"
            for place, tail in sorted(self._tails.items())
        ]
        return [*tails, *self.refused]

    def read(self, timeout_sec: float) -> None:
        """Takes what arrives within some time."""
        for connection, line in self._listener.read(timeout_sec):
            if line is None:
                self._lose(connection)
                continue
            try:
                self._take(connection, line)
            except (ValueError, KeyError, TypeError, RecursionError):
                self._listener.drop(connection)
                self._lose(connection)

    def _take(self, connection: socket.socket, line: bytes) -> None:
        """Nothing is believed before the secret: anybody can connect."""
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not a message")  # noqa: TRY004 (bytes, not a type)
        if connection in self._members:
            self._hear(connection, message)
            return
        said = str(message.get("secret", ""))
        if not hmac.compare_digest(said.encode(), self.secret.encode()):
            raise ValueError("wrong secret")
        engine.keep_alive(connection)
        self._listener.admit(connection)
        self._members.add(connection)

    def _hear(self, connection: socket.socket, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.refused.append(str(message["refused"]))
        elif "exit_code" in message:
            place = self._places[connection]
            self.codes[place] = int(message["exit_code"])
            if message.get("oom_kills") is not None:
                self.oom_kills[place] = int(message["oom_kills"])
            if message["tail"]:
                self._tails[place] = str(message["tail"])
        else:
            self._places[connection] = int(message["place"])
            self._hosts[int(message["place"])] = str(message["host"])

    def _lose(self, connection: socket.socket) -> None:
        """A member that reported no exit was killed, or lost."""
        self._members.discard(connection)
        place = self._places.pop(connection, None)
        if place is not None and place not in self.codes:
            self.codes[place] = -signal.SIGKILL
            self.lost[place] = (
                f"the connection to process {place} on host {self._hosts[place]!r} was"
                " lost: it was killed, or its host failed"
            )

    def close(self) -> None:
        """Closes all connections, by which members end; harmless if they are closed."""
        self._listener.close()


def _listen() -> tuple[socket.socket, int]:
    """Opens a port for the hosts of a gang.

    Where this host has a public address, so have its members: then the secret alone
    keeps strangers out, as on systems without such filters.
    """
    listener = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
    port = int(listener.getsockname()[1])
    own = port_filter.resolve(f"{socket.gethostname()}:{port}")
    if all(port_filter.allows(port_filter.PRIVATE, str(address)) for address in own):
        with contextlib.suppress(OSError):
            port_filter.restrict(listener, port_filter.Reach.PRIVATE)
    return listener, port
