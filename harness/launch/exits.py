"""Where the members of a gang report how their processes ended."""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import signal
import socket
from typing import TYPE_CHECKING, Any

from harness.launch import channel

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemberExits:
    """Where the members of a gang report, until it is closed.

    Attributes:
      secret: Known to processes of the trial only.
      codes: Exit codes of the processes that have ended, by place among the members.
      refused: Why a member did not start its process; empty if none refused.
      lost: Why the connection to a member counts as its end, by place.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.codes: dict[int, int] = {}
        self.refused: list[str] = []
        self.lost: dict[int, str] = {}
        self._tails: dict[int, str] = {}
        self._hosts: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("", 0))
        self._places: dict[socket.socket, int] = {}
        self._received: dict[socket.socket, Received] = {}
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def address(self) -> str:
        """Name of this host, and the port."""
        return f"{socket.gethostname()}:{self._listener.getsockname()[1]}"

    def texts(self) -> list[str]:
        """What members said, for the record of a failure."""
        tails = [
            f"-- process {place} on {self._hosts[place]}:\n{tail}"
            for place, tail in sorted(self._tails.items())
        ]
        return [*tails, *self.refused]

    def read(self, timeout_sec: float) -> None:
        """Takes what arrives within some time."""
        for key, _ in self._selector.select(timeout_sec):
            source: Any = key.fileobj
            if source is self._listener:
                connection, _ = self._listener.accept()
                channel.keep_alive(connection)
                self._received[connection] = Received(self.secret)
                self._selector.register(connection, selectors.EVENT_READ)
            else:
                self._take(source)

    def _take(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._lose(connection)
            return
        try:
            for message in self._received[connection].add(data):
                self._hear(connection, message)
        except (ValueError, KeyError, TypeError):  # not a member: anybody can connect
            self._lose(connection)

    def _hear(self, connection: socket.socket, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.refused.append(str(message["refused"]))
        elif "exit_code" in message:
            place = self._places[connection]
            self.codes[place] = int(message["exit_code"])
            if message["tail"]:
                self._tails[place] = str(message["tail"])
        else:
            self._places[connection] = int(message["place"])
            self._hosts[int(message["place"])] = str(message["host"])

    def _lose(self, connection: socket.socket) -> None:
        """Forgets a connection; a member that reported no exit was killed, or lost."""
        self._selector.unregister(connection)
        self._received.pop(connection)
        place = self._places.pop(connection, None)
        connection.close()
        if place is not None and place not in self.codes:
            self.codes[place] = -signal.SIGKILL
            self.lost[place] = (
                f"the connection to process {place} on {self._hosts[place]} was lost:"
                " it was killed, or its host failed"
            )

    def close(self) -> None:
        """Closes all connections, by which members end; harmless if they are closed."""
        self._selector.close()
        for connection in (*self._received, self._listener):
            connection.close()
        self._received.clear()


class Received:
    """The messages of one connection; nothing is believed before the secret.

    Attributes:
      is_trusted: Whether the secret was right.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._rest = b""
        self.is_trusted = False

    def add(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the messages that are complete with some more bytes.

        Raises:
          ValueError: They do not come from a member.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > channel.MAX_LINE_BYTES:
            raise ValueError("the line is too long")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not a message")  # noqa: TRY004 (bytes, not a type)
            if self.is_trusted:
                yield message
                continue
            said = str(message.get("secret", ""))
            if not hmac.compare_digest(said.encode(), self._secret.encode()):
                raise ValueError("wrong secret")
            self.is_trusted = True
