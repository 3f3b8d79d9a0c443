"""A listening socket for lines, at which strangers cost little and end nothing.

Whoever may connect must be expected to: port scanners, health checks, floods. So a
connection is a stranger's until its owner admits it (by a secret, a registration, the
user of the other end). Strangers are few, have little time, and send short lines; the
packets of hosts that cannot be meant do not arrive at all (``port_filter``).
Free of TensorFlow.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_STRANGERS: Final = 128
"""Of more connections that have not been admitted, the oldest are closed."""
STRANGER_SEC: Final = 10.0
"""A connection that has not been admitted after this long is closed."""
_ACCEPTS_PER_ROUND: Final = MAX_STRANGERS // 2
"""Fewer than strangers may be: whoever speaks at once is read before he is old."""
_MAX_OF_A_PROCESS: Final = 4
_RECEIVED_BYTES: Final = 65536
_NO_DESCRIPTOR_SEC: Final = 0.05


class LineListener:
    """Connections that send lines; a stranger's until it is admitted."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        max_line_bytes: int,
        stranger_sec: float = STRANGER_SEC,
        user: int | None = None,
    ) -> None:
        """Takes over a socket, which it closes."""
        self._listener = listener
        self._max_line_bytes = max_line_bytes
        self._stranger_sec = stranger_sec
        self._user = user
        self._rest: dict[socket.socket, bytes] = {}
        # In the order of their arrival, with the time of it.
        self._strangers: dict[socket.socket, float] = {}
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def connections(self) -> tuple[socket.socket, ...]:
        return tuple(self._rest)

    def read(self, timeout_sec: float) -> Iterator[tuple[socket.socket, bytes | None]]:
        """Yields what arrives within some time: a connection, a line without its end.

        None in place of a line says that an admitted connection has ended, or sent a
        line that is too long. Of strangers nothing is said but their lines. What
        follows a line is read after the caller has admitted or dropped its connection.
        """
        ready: list[Any] = [
            key.fileobj for key, _ in self._selector.select(timeout_sec)
        ]
        for source in ready:
            if source is not self._listener and source in self._rest:
                yield from self._lines_of(source)
        if self._listener in ready:
            self._accept()
        latest = time.monotonic() - self._stranger_sec
        for connection, since in list(self._strangers.items()):
            if since < latest:
                self.drop(connection)

    def _lines_of(
        self, connection: socket.socket
    ) -> Iterator[tuple[socket.socket, bytes | None]]:
        try:
            data = connection.recv(_RECEIVED_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._rest[connection] + data).split(b"\n")
        self._rest[connection] = rest
        for line in lines:
            if len(line) > self._max_line_bytes:
                break
            yield connection, line
            if connection not in self._rest:  # the caller has dropped it
                return
        else:
            if data and len(rest) <= self._max_line_bytes:
                return
        is_stranger = connection in self._strangers
        self.drop(connection)
        if not is_stranger:
            yield connection, None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left, or the other side has gone
                if self._strangers:
                    self.drop(next(iter(self._strangers)))
                else:
                    time.sleep(_NO_DESCRIPTOR_SEC)
                return
            if self._user is not None and not self._is_welcome(connection):
                connection.close()
                continue
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._rest[connection] = b""
            self._strangers[connection] = time.monotonic()
            if len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                self.drop(oldest if self._user is None else connection)

    def _is_welcome(self, connection: socket.socket) -> bool:
        """Whether the process at the other end is of the user, and none that floods."""
        process, user = _owner_of(connection)
        owners = [_owner_of(stranger)[0] for stranger in self._strangers]
        return user == self._user and owners.count(process) < _MAX_OF_A_PROCESS

    def admit(self, connection: socket.socket) -> None:
        """Lets a connection stay for as long as it likes."""
        self._strangers.pop(connection, None)
        connection.setblocking(True)

    def drop(self, connection: socket.socket) -> None:
        """Closes a connection, and forgets what it has sent."""
        self._strangers.pop(connection, None)
        if self._rest.pop(connection, None) is not None:
            self._selector.unregister(connection)
            connection.close()

    def close(self) -> None:
        for connection in self.connections:
            self.drop(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._selector.close()
        self._listener.close()


def _owner_of(connection: socket.socket) -> tuple[int, int]:
    """Returns process id and user id of the other end of a Unix socket."""
    size = struct.calcsize("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", data)
    return int(process), int(user)
