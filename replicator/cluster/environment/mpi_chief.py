"""Where rank 0 of an MPI job is, as far as its launcher says.

MPI hands out addresses through its library only. But ``mpirun`` tells its processes how
many of them are on this host, and where it runs itself: that is the host of rank 0
unless it was started elsewhere, which rank 0 notices.
"""

from __future__ import annotations

import re
import socket
import zlib
from typing import TYPE_CHECKING

from replicator.cluster.environment.variables import FIRST_PORT, LAST_PORT
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# OpenMPI 4: "3512795136.0;tcp://10.0.0.1,10.1.0.1:41231"
_URI = "OMPI_MCA_orte_hnp_uri"
_ADDRESS = re.compile(r"tcp://(\d+(?:\.\d+){3})")
# OpenMPI 5 and PRRTE: "prterun-node1-4711@1", "prte-node1-4711@1"
_NAMESPACE = "PMIX_NAMESPACE"
_NAME = re.compile(r"prte(?:run)?-([A-Za-z0-9][A-Za-z0-9.-]*)-\d+@\d+")


def find(environ: Mapping[str, str], *, is_one_host: bool) -> tuple[str, int] | None:
    """Returns a host and a port, the same in all processes; None if nothing says.

    Args:
      environ: Environment variables.
      is_one_host: Whether all processes are on this host.
    """
    job = environ.get(_NAMESPACE) or environ.get(_URI)
    if not job:
        return None
    port = FIRST_PORT + zlib.crc32(job.encode()) % (LAST_PORT - FIRST_PORT + 1)
    if is_one_host:
        return "127.0.0.1", port
    found = _ADDRESS.search(environ.get(_URI, "")) or _NAME.fullmatch(job)
    return None if found is None else (found[1], port)


def check_is_here(host: str, variable: str) -> None:
    """Checks that rank 0, which calls this, is where the others look for it.

    Raises:
      ClusterConfigError: It is on another host than its launcher.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as own:
                own.bind(address)  # only a host's own addresses can be bound
                return
        why = "it has no address"
    except OSError as error:
        why = error.strerror or str(error)
    raise ClusterConfigError(
        f"rank 0 is not on {host}, where its launcher runs ({why}), so the other"
        f" processes cannot find it; set {variable} in every process to the host of"
        f" rank 0, as by mpirun -x {variable}=HOST"
    )
