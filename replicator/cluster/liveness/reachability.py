"""Whether processes of a cluster can be connected to; every wait is bounded."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

from replicator.cluster.configuration import split_address
from replicator.errors import PortInUseError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
