"""A stranger at the port of a process that died: the others end as without it."""

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
    kind, index = member
    return int(cluster.addresses[kind][index].rpartition(":")[2])


@contextlib.contextmanager
def started(backend, folder, victim):
    with case_cluster.started(
        "member",
        folder,
        path=FOLDER,
        options={"backend": backend, "victim": victim[1]},
        **CLUSTERS[backend],
    ) as running:
        yield running.cluster


def wait_until_under_way(cluster, victim):
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


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    victim = ("worker", 0)
    folder = tmp_path_factory.mktemp("served")
    with started("multi_worker_in_graph", folder, victim) as cluster:
        wait_until_under_way(cluster, victim)
        yield cluster


def check_servers_end(cluster, client, stranger, how):
    """Kills the client; its servers must end while another listens at its port."""
    servers = [member for member in cluster.members if member != client]
    cluster.kill(*client)
    start = time.monotonic()
    stranger(port_of(cluster, client), how)
    wait_until(
        lambda: not any(cluster.is_running(*m) for m in servers), cluster, GIVE_UP_SEC
    )
    took_sec = time.monotonic() - start

    assert took_sec < END_SEC
    assert servers
    for member in servers:
        assert 0 == cluster.exit_code(*member)
        assert re.search(
            r"replicator.server: the client has exited, and another process "
            r"listens at its address$",
            cluster.output(*member).rstrip(),
        )


def test_ports_of_a_local_cluster_answer_this_machine_only(served):
    """The client's and the server's, at every address but those of loopback."""
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address besides loopback to try from")
    assert 2 == len(served.members)
    for member in served.members:
        port = port_of(served, member)
        with socket.create_connection(("127.0.0.1", port), 5.0):
            pass
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), 0.5)


def test_servers_end_with_their_client_whoever_takes_its_port(served, stranger):
    """Servers know their own client from an open port."""
    check_servers_end(served, ("worker", 0), stranger, "garbage")


@pytest.mark.full
def test_parameter_servers_end_with_their_chief_too(tmp_path, stranger):
    """Only in the full run: they run the same program, and know strangers of any kind.

    ``test_peer.py`` has the kinds.
    """
    client = ("chief", 0)
    with started("async", tmp_path, client) as cluster:
        wait_until_under_way(cluster, client)
        check_servers_end(cluster, client, stranger, "silent")


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
