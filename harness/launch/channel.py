"""The connection between the members of a gang and the harness.

Lines of JSON over TCP, after a secret that only processes of the trial know. Members
end when it is closed: the kernel of the harness's host closes it however the harness
ends, and keepalive finds out when the host itself is gone.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS_VARIABLE: Final = "REPLICATOR_HARNESS_GANG"
"""Environment variable with ``host:port`` of the harness."""
HOST_IN_VARIABLE: Final = "REPLICATOR_HARNESS_GANG_HOST_IN"
"""Environment variable with the name of the one in which the engine tells each member
the address of the harness's host; without it, the host's own name is used."""
SECRET_VARIABLE: Final = "REPLICATOR_HARNESS_GANG_SECRET"  # noqa: S105 (a name)
CONNECT_TIMEOUT_SEC: Final = 30.0
LOST_AFTER_SEC: Final = 20
"""A host that has not answered for this long is gone."""
REFUSED: Final = 78
"""Exit code where no process was started: no rank can have failed (EX_CONFIG)."""
_PROBE_SEC = 5
MAX_LINE_BYTES: Final = 65536


def keep_alive(connection: socket.socket) -> None:
    """Makes the kernel notice within ``LOST_AFTER_SEC`` that the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SEC)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SEC)
    probes = LOST_AFTER_SEC // _PROBE_SEC - 1
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_SEC * 1000
    )


def own_address(environ: Mapping[str, str]) -> str:
    """Returns where a member finds the harness.

    An engine may know it better: a host's own name may mean its loopback address
    elsewhere.
    """
    address = environ[ADDRESS_VARIABLE]
    if host := environ.get(environ.get(HOST_IN_VARIABLE, "")):
        return f"{host}:{address.rpartition(':')[2]}"
    return address


def connect(address: str, secret: str) -> socket.socket:
    """Connects a member to the harness."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SEC)
    connection.settimeout(None)
    keep_alive(connection)
    send(connection, secret=secret)
    return connection


def send(connection: socket.socket, **message: Any) -> None:
    """Sends one message."""
    connection.sendall(json.dumps(message).encode("ascii") + b"\n")
