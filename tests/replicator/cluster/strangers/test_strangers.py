"""A stranger at the port of a process that died: the others end as without it."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path

import case_cluster
import messages
import pytest
from messages import wait_until

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
START_SEC = 240.0
# Without a stranger it is 2 s and a poll; the rest is for a machine that is busy. The
# stranger used to hold them for as long as it lived.
END_SEC = 20.0
GIVE_UP_SEC = 60.0
CLUSTERS = {
    "async": {"num_workers": 1, "num_ps": 1, "has_chief": True},
    "multi_worker_in_graph": {"num_workers": 2, "runners": [("worker", 0)]},
    "multi_worker": {"num_workers": 2},
}


def port_of(cluster, member):
    """Where a member listens."""
    kind, index = member
    return int(cluster.addresses[kind][index].rpartition(":")[2])


@contextlib.contextmanager
def started(backend, folder, victim):
    """A job in which one process will be killed."""
    with case_cluster.started(
        "member",
        folder,
        path=FOLDER,
        options={"backend": backend, "victim": victim[1]},
        **CLUSTERS[backend],
    ) as running:
        yield running.cluster


def wait_until_under_way(cluster, victim):
    """Waits until the process that will be killed works."""

    def is_under_way():
        assert cluster.is_running(*victim), cluster.tails()
        return messages.last(messages.received(cluster, victim), "under_way")

    wait_until(is_under_way, cluster, START_SEC)


def own_address():
    """An address of this machine besides loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


@pytest.mark.parametrize(
    ("backend", "victim", "how"),
    [
        ("async", ("chief", 0), "silent"),
        ("multi_worker_in_graph", ("worker", 0), "garbage"),
    ],
)
def test_servers_end_with_their_client_whoever_takes_its_port(
    tmp_path, stranger, backend, victim, how
):
    """Workers and parameter servers know their own client from an open port."""
    with started(backend, tmp_path, victim) as cluster:
        others = [member for member in cluster.members if member != victim]
        wait_until_under_way(cluster, victim)
        cluster.kill(*victim)
        start = time.monotonic()
        stranger(port_of(cluster, victim), how)
        wait_until(
            lambda: not any(cluster.is_running(*m) for m in others),
            cluster,
            GIVE_UP_SEC,
        )
        took_sec = time.monotonic() - start

        assert took_sec < END_SEC
        for member in others:
            assert 0 == cluster.exit_code(*member)
            assert re.search(
                r"replicator.server: the client has exited, and another process "
                r"listens at its address$",
                cluster.output(*member).rstrip(),
            )


def test_workers_know_a_dead_worker_from_a_stranger(tmp_path, stranger):
    """The wait for it ends with an error that names it, and not after timeout_sec."""
    victim = ("worker", 1)
    with started("multi_worker", tmp_path, victim) as cluster:
        wait_until_under_way(cluster, victim)
        cluster.kill(*victim)
        stranger(port_of(cluster, victim), "silent")
        wait_until(lambda: not cluster.is_running("worker", 0), cluster, GIVE_UP_SEC)
        sent = messages.received(cluster, ("worker", 0))
        error = messages.last(sent, "error")

        assert messages.last(sent, "waited_sec") < END_SEC
        assert re.search(
            r"^WorkerLostError: .*: worker 1 \(localhost:\d+\) has exited; a sync",
            error,
        )


def test_ports_of_a_local_cluster_answer_this_machine_only(tmp_path):
    """The client's and the server's, at every address but those of loopback."""
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address besides loopback to try from")
    victim = ("worker", 0)
    with started("multi_worker_in_graph", tmp_path, victim) as cluster:
        wait_until_under_way(cluster, victim)
        for member in cluster.members:
            port = port_of(cluster, member)
            with socket.create_connection(("127.0.0.1", port), 5.0):
                pass
            with pytest.raises(TimeoutError):
                socket.create_connection((address, port), 0.5)
