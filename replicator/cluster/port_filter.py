"""Closes the ports of a cluster's processes to hosts outside it.

TensorFlow's server listens on all interfaces, whatever address it gets, has no option
to change that, and does what everybody asks of it. How a port is closed is in
``_tf/ports``; here is for which hosts it stays open.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from replicator._tf.ports import listen, packets
from replicator.cluster import network
from replicator.cluster.configuration import split_address
from replicator.cluster.network import Reach
from replicator.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.cluster.configuration import ClusterConfig


@contextlib.contextmanager
def guarded(config: ClusterConfig) -> Iterator[None]:
    """Filters the port of this process, which TensorFlow opens inside.

    The filter is in place before the first connection is possible.

    Args:
      config: The cluster; determines which hosts may connect (``network.reach_of``).

    Raises:
      ClusterConfigError: An address of the cluster is public; see ``network``.
      ClusterError: This system has no such filters, or TensorFlow listens in an unknown
        way.
    """
    reach = check(config)
    if reach is Reach.ANY:
        yield
        return
    # TensorFlow answers from the moment it listens, with Python's lock held, so a
    # filter that is added afterwards is too late. Ports that other parts
    # of it open meanwhile, such as its profiler, are none of the cluster's.
    _, port = split_address(config.address)
    ports = []

    def filter_it(descriptor: int) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            ports.append(opened.getsockname()[1])
            if ports[-1] == port:
                restrict(opened, reach)

    with contextlib.ExitStack() as listening:
        try:
            listening.enter_context(listen.before_listen(filter_it))
        except OSError as error:
            raise _unprotected(reach, error) from error
        yield
    if port not in ports:
        raise _unprotected(reach, f"TensorFlow listened at {ports}, not at {port}")


def restrict(listener: socket.socket, reach: Reach) -> None:
    """Makes a listening socket drop packets from networks that are not allowed.

    Raises:
      OSError: The system has no such filters.
    """
    if reach is not Reach.ANY:
        packets.attach(listener, packets.program(reach.networks))


def check(config: ClusterConfig) -> Reach:
    """Returns which hosts may reach this process's port, if that can be enforced.

    Raises:
      ClusterConfigError: An address of the cluster is public; see ``network``.
      ClusterError: This system has no such filters.
    """
    reach = network.reach_of(config)
    if reach is not Reach.ANY:
        check_system(reach)
    return reach


def check_system(reach: Reach) -> None:
    """Tests that filters work on this system.

    Raises:
      ClusterError: They do not.
    """
    try:
        packets.check_system()
    except OSError as error:
        raise _unprotected(reach, error) from error


def _unprotected(reach: Reach, why: object) -> ClusterError:
    return ClusterError(
        "TensorFlow's server listens on all interfaces, and every host that can reach "
        "its port can run any operation there; the filter that restricts it to "
        f"{reach.value} does not work on this system ({why}); if a firewall blocks "
        f"untrusted hosts, declare it: {network.HOW_TO_TRUST}"
    )
