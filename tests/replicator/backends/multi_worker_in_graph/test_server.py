"""Servers end with their client; sorted last, as it ends the cluster's client."""

import time

import pytest

from replicator import errors, server
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.local_cluster import free_ports


@pytest.mark.processes
def test_a_server_ends_when_its_client_is_killed(stepping_client):
    """Within seconds, in the middle of a step, and by itself."""
    cluster = stepping_client.cluster
    start = time.monotonic()
    cluster.kill("worker", 0)
    codes = cluster.wait(timeout_sec=60)

    assert 0 == codes["worker", 1]
    assert time.monotonic() - start < 60
    output = cluster.output("worker", 1)
    assert "worker 1 serves at localhost:" in output
    assert output.rstrip().endswith("replicator.server: the client has exited")


def test_without_a_chief_worker_0_is_the_client():
    (port,) = free_ports(1)
    addresses = {"worker": (f"localhost:{port}", "localhost:1")}
    config = ClusterConfig(addresses=addresses, kind="worker", index=0)

    with pytest.raises(
        errors.ClusterConfigError,
        match=rf"this process is worker 0 \(localhost:{port}\), and without a chief "
        r"worker 0 is the client: start your own program here",
    ):
        server.serve(config)


def test_the_wait_for_a_client_is_bounded(monkeypatch):
    monkeypatch.setattr(server, "_start", lambda *_: None)
    first, second = free_ports(2)
    addresses = {"worker": (f"localhost:{first}", f"localhost:{second}")}
    config = ClusterConfig(addresses=addresses, kind="worker", index=1)

    with pytest.raises(
        errors.UnreachableError,
        match=rf"the client, worker 0 \(localhost:{first}\), did not start within 0 s",
    ):
        server.serve(config, client_timeout_sec=0)
