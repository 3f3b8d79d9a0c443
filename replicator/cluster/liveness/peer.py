"""Identity of a remote TensorFlow server: is it still the same process?

An open port says little: after a process has exited, another one may listen there. A
connection says more. The kernel closes it when the process at the other end exits in
whatever way, and keeps it open while that process is busy or stopped. If it breaks for
another reason, the server must give its identity: TensorFlow gives each device of a
process a random number, its incarnation, which is unique to the process.

The query uses the server's own protocol, gRPC over HTTP/2 (RFC 9113), as far as one
call needs it. Not grpcio's channel: it has no keepalive that the server allows and that
a stopped process passes, and its threads wake 240 times a second beside the steps that
are timed. Does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time

from replicator.cluster.configuration import split_address

# The first bytes of an HTTP/2 client (RFC 9113, 3.4): the preface and empty settings. A
# gRPC server that is alive responds with its own settings, however busy it is.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_FRAME_HEADER_BYTES = 9
_MAX_FRAME_BYTES = 16384
_MAX_ANSWER_BYTES = 65535  # HTTP/2's initial flow-control window
_STREAM = 1
_PATH = b"/tensorflow.WorkerService/GetStatus"
# With these, a machine that vanishes without closing is detected after 8 + 3 * 4 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 8, "TCP_KEEPINTVL": 4, "TCP_KEEPCNT": 3}
_CONNECT_SEC = 1.0
_ANSWER_SEC = 2.0
_INCARNATION_FIELD = 6  # of TensorFlow's DeviceAttributes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class NotAServerError(ConnectionError):
    """The process that listens at an address is not a TensorFlow server."""


class Link:
    """A connection to a TensorFlow server that is kept open.

    Attributes:
      is_grpc_server: Whether the other end has responded as a gRPC server does.
      identity: Numbers that are unique to this server process; None until it responds.
    """

    def __init__(self, address: str, timeout_sec: float) -> None:
        """Connects, and sends the query for the identity.

        Args:
          address: ``name:port`` of the server.
          timeout_sec: Longest wait for the connection.

        Raises:
          ConnectionRefusedError: No process listens there.
          OSError: The machine does not respond, or is unknown.
        """
        self.is_grpc_server = False
        self.identity: frozenset[int] | None = None
        self._unread = b""
        self._answer = b""
        self._socket = socket.create_connection(split_address(address), timeout_sec)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if option := getattr(socket, name, None):  # not all systems have them
                    self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
            self._socket.sendall(HELLO + _question(address))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def read(self, timeout_sec: float) -> bool:
        """Reads from the other end; returns as soon as data has arrived.

        Args:
          timeout_sec: Longest wait for data.

        Returns:
          Whether data has arrived. A stopped process sends none, but still exists.

        Raises:
          NotAServerError: The other end is not a TensorFlow server.
          TimeoutError: The machine at the other end does not respond any more.
          OSError: The other end closed the connection.
        """
        readable, _, _ = select.select([self._socket], [], [], timeout_sec)
        if not readable:
            return False
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionResetError("closed the connection")
        self._unread += received
        while len(self._unread) >= _FRAME_HEADER_BYTES:
            length = int.from_bytes(self._unread[:3], "big")
            kind, flags = self._unread[3], self._unread[4]
            # The first frame of a server is its settings (RFC 9113, 3.4).
            if length > _MAX_FRAME_BYTES or not (
                self.is_grpc_server or kind == _SETTINGS
            ):
                raise NotAServerError("does not speak HTTP/2")
            end = _FRAME_HEADER_BYTES + length
            if len(self._unread) < end:
                break
            stream = int.from_bytes(self._unread[5:9], "big")
            self._take(kind, flags, stream, self._unread[_FRAME_HEADER_BYTES:end])
            self._unread = self._unread[end:]
        return True

    def wait_for_identity(self, timeout_sec: float) -> frozenset[int] | None:
        """Waits for the identity of the other end; None after the timeout.

        Raises:
          OSError: See ``read``.
        """
        deadline = time.monotonic() + timeout_sec
        while self.identity is None and (left_sec := deadline - time.monotonic()) > 0:
            self.read(left_sec)
        return self.identity

    def read_all(self) -> None:
        """Reads all data that has already arrived.

        Raises:
          OSError: See ``read``.
        """
        while self.read(0.0):
            pass

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self.is_grpc_server = True
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif stream == _STREAM and self.identity is None:
            if kind == _DATA:
                self._answer += payload
            if len(self._answer) > _MAX_ANSWER_BYTES:
                raise NotAServerError("sends more than was requested")
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                self.identity = _incarnations(self._answer[5:])
                if not self.identity:
                    raise NotAServerError("is not a TensorFlow server")


class Peer:
    """Another process of the cluster: its address and recorded identity."""

    def __init__(self, address: str) -> None:
        """Records its identity, and keeps a connection to it.

        Args:
          address: Where it listens; it may be slow, or not running yet.
        """
        self._address = address
        self._identity: frozenset[int] | None = None
        self._link: Link | None = None
        self.has_ended()

    def has_ended(self) -> bool:
        """Whether the recorded process is known to have exited.

        Not if it is slow, stopped, or unreachable.
        """
        if self._link is not None:
            try:
                self._link.read_all()
            except OSError:
                self._link.close()
                self._link = None
            else:
                return False
        # The kernel keeps the connection to a process that is busy or stopped, so a
        # lost one means little by itself: a network may have dropped it. Only a closed
        # port, or another process at the same one, proves the end.
        try:
            link = Link(self._address, _CONNECT_SEC)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        is_closed = False
        try:
            found = link.wait_for_identity(_ANSWER_SEC)
        except OSError:
            found, is_closed = None, True
        if self._identity is None:
            self._identity = found
        if found is not None and found == self._identity:
            self._link = link
            return False
        link.close()
        if self._identity is None:
            return False  # its identity was never recorded
        # A gRPC server may be busy. A process that only accepts is stopped or a
        # different one; but the kernel has closed the connection to the recorded one.
        return bool(found) or is_closed or not link.is_grpc_server


def answers(address: str, timeout_sec: float) -> bool:
    """Whether a gRPC server at an address responds within a time.

    The kernel accepts connections even for a process that hangs, so connecting is not
    enough: the process must respond.
    """
    deadline = time.monotonic() + timeout_sec
    with contextlib.suppress(OSError):
        link = Link(address, timeout_sec)
        with contextlib.closing(link):
            while (
                not link.is_grpc_server
                and (left_sec := deadline - time.monotonic()) > 0
            ):
                link.read(left_sec)
            return link.is_grpc_server
    return False


def _question(address: str) -> bytes:
    """The frames of a call of ``GetStatus``, without arguments."""
    # Headers in literal form (RFC 7541, 6.2.2), except for two of the static table.
    headers = b"".join(
        [
            b"\x83",  # :method: POST
            b"\x86",  # :scheme: http
            b"\x04" + _literal(_PATH),
            b"\x01" + _literal(address.encode()[:100]),  # :authority
            b"\x00" + _literal(b"te") + _literal(b"trailers"),  # codespell:ignore te
            b"\x0f\x10" + _literal(b"application/grpc"),  # content-type
        ]
    )
    return _frame(_HEADERS, _END_HEADERS, _STREAM, headers) + _frame(
        _DATA, _END_STREAM, _STREAM, bytes(5)
    )


def _literal(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    header = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return header + stream.to_bytes(4, "big") + payload


def _incarnations(answer: bytes) -> frozenset[int]:
    """The incarnations in a GetStatusResponse of TensorFlow; empty if malformed."""
    found = set()
    try:
        for field, device in _fields(answer):
            if field == 1 and isinstance(device, bytes):
                for part, value in _fields(device):
                    if part == _INCARNATION_FIELD and isinstance(value, int):
                        found.add(value)
    except (IndexError, struct.error, ValueError):
        return frozenset()
    return frozenset(found)


def _fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Numbers and values of the fields of a protocol buffer."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: int | bytes
        if tag & 7 == _VARINT:
            value, at = _varint(message, at)
        elif tag & 7 == _FIXED64:
            (value,), at = struct.unpack_from("<Q", message, at), at + 8
        elif tag & 7 == _FIXED32:
            (value,), at = struct.unpack_from("<I", message, at), at + 4
        elif tag & 7 == _BYTES:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        else:
            raise ValueError(f"wire type {tag & 7} is unknown")
        fields.append((tag >> 3, value))
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not byte & 0x80:
            return value, at
