"""A TF_CONFIG or a server that no cluster can use is refused."""

import contextlib
import json
import socket

import pytest

from replicator import errors, server
from replicator.backends.asynchronous import MultiWorkerAsyncReplicator
from replicator.cluster import local_cluster, membership

WHOLE = {
    "chief": ["localhost:2996"],
    "worker": ["localhost:2997"],
    "ps": ["localhost:2998"],
}


def without(kind):
    return {other: addresses for other, addresses in WHOLE.items() if other != kind}


def set_config(monkeypatch, cluster, kind="chief"):
    task = {"type": kind, "index": 0}
    text = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", text)


@pytest.mark.parametrize(
    ("cluster", "kind", "message"),
    [
        (
            without("ps"),
            "chief",
            r"has 1 'chief', 1 'worker', but no 'ps': .* one par",
        ),
        (without("worker"), "chief", r"has 1 'chief', 1 'ps', but no 'worker'"),
        (WHOLE, "worker", r"this process is 'worker' 0, but only the chief runs"),
        (WHOLE, "ps", r"this process is 'ps' 0, but .*run `python -m replicator.serv"),
        (without("chief"), "worker", r"this process is 'worker' 0, but .* the chief"),
    ],
    ids=["no server", "no worker", "worker", "server", "no chief"],
)
def test_a_partial_cluster_raises_an_actionable_error(
    monkeypatch, cluster, kind, message
):
    set_config(monkeypatch, cluster, kind)

    with pytest.raises(errors.ClusterConfigError, match=message):
        MultiWorkerAsyncReplicator()


def test_a_missing_configuration_is_refused(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)

    with pytest.raises(errors.ClusterConfigError, match="TF_CONFIG"):
        MultiWorkerAsyncReplicator()


def test_processes_that_do_not_answer_are_named(monkeypatch):
    """Before TensorFlow waits for them without end."""
    ports = local_cluster.free_ports(3)
    cluster = {
        kind: [f"localhost:{port}"] for kind, port in zip(WHOLE, ports, strict=True)
    }
    set_config(monkeypatch, cluster)
    monkeypatch.setattr(membership, "_JOINED", [])
    # This process may have variables of other tests.
    monkeypatch.setattr(membership, "check_nothing_is_made", lambda: None)

    with pytest.raises(
        errors.UnreachableError,
        match=r"no response from 2 of 2 processes within 0.1 s: .*worker 0.*ps 0 at",
    ):
        MultiWorkerAsyncReplicator(connect_timeout_sec=0.1)


def tf_config(kind, address="localhost:2999"):
    ports = {"chief": 2996, "worker": 2997, "ps": 2998}
    cluster = {other: [f"localhost:{port}"] for other, port in ports.items()}
    cluster[kind] = [address]
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})


def test_the_chief_does_not_serve(monkeypatch):
    """It is the user's own program."""
    monkeypatch.setenv("TF_CONFIG", tf_config("chief"))

    with pytest.raises(
        errors.ClusterConfigError, match=r"'chief' 0, but only 'worker' and 'ps' run"
    ):
        server.main([])


def test_a_port_in_use_is_reported_before_tensorflow_starts(monkeypatch):
    """Not by an abort of TensorFlow's server."""
    with contextlib.closing(socket.socket()) as other:
        other.bind(("", 0))
        other.listen(1)
        address = f"localhost:{other.getsockname()[1]}"
        monkeypatch.setenv("TF_CONFIG", tf_config("ps", address))

        with pytest.raises(errors.PortInUseError, match=r"port \d+ .* is in use"):
            server.main([])
