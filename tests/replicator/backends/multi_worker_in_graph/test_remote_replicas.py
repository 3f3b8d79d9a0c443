"""One client and one server: what the client's cases find, and who may connect."""

import socket
import time
from pathlib import Path

import damaging
import pytest
from case_cluster import load

pytestmark = pytest.mark.processes


client_cases = load(Path(__file__).with_name("client_cases.py"))
EPOCH = client_cases.an_uneven_epoch.__name__


@pytest.mark.parametrize("case", [c for c in client_cases.CASES if c != EPOCH])
def test_two_workers(client, case):
    assert client.value(case) is None


def test_an_uneven_epoch_on_workers_is_that_of_one_device(client, check_epoch):
    """Three of four replicas have no example in its last step."""
    check_epoch([client.value(EPOCH)])


def own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def port_of(cluster, worker):
    return int(cluster.addresses["worker"][worker].rpartition(":")[2])


def test_ports_of_a_local_cluster_answer_this_machine_only(client):
    client.value(EPOCH)
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address besides loopback to try from")
    for worker in range(2):
        port = port_of(client.cluster, worker)
        socket.create_connection(("127.0.0.1", port), 5.0).close()
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), 0.5)


# The last one, as it ends the cluster's client.
def test_a_server_ends_when_its_client_is_killed(stepping_client):
    """Within seconds, in the middle of a step, whoever takes the client's port."""
    cluster = stepping_client.cluster
    start = time.monotonic()
    cluster.kill("worker", 0)
    with damaging.listening(port_of(cluster, 0), "garbage"):
        codes = cluster.wait(timeout_sec=60)

    assert 0 == codes["worker", 1]
    assert time.monotonic() - start < 60
    output = cluster.output("worker", 1)
    assert "worker 1 serves at localhost:" in output
    assert output.rstrip().endswith(
        "replicator.server: the client has exited, and another process listens at "
        "its address"
    )
