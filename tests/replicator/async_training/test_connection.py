"""A TF_CONFIG or a server that no cluster can use is refused."""

import json
import socket

import pytest

import replicator
from replicator import errors, server

WHOLE = {
    "chief": ["localhost:2996"],
    "worker": ["localhost:2997"],
    "ps": ["localhost:2998"],
}


def without(kind):
    return {other: addresses for other, addresses in WHOLE.items() if other != kind}


def make():
    replicator.create("async", connect_timeout_sec=0.1)


def serve():
    server.main([])


@pytest.mark.parametrize(
    ("call", "cluster", "kind", "message"),
    [
        (
            make,
            without("ps"),
            "chief",
            r"has 1 'chief', 1 'worker', but no 'ps': .* one p",
        ),
        (make, without("worker"), "chief", r"has 1 'chief', 1 'ps', but no 'worker'"),
        (make, WHOLE, "worker", r"this process is 'worker' 0, but only the chief runs"),
        (make, WHOLE, "ps", r"'ps' 0, but .*run `python -m replicator.serv"),
        (make, without("chief"), "worker", r"is 'worker' 0, but .* the chief"),
        (make, {}, "chief", r"TF_CONFIG"),
        (serve, WHOLE, "chief", r"'chief' 0, but only 'worker' and 'ps' run"),
    ],
    ids=["no server", "no worker", "worker", "server", "no chief", "none", "serving"],
)
def test_a_process_without_its_place_is_told_so(
    monkeypatch, call, cluster, kind, message
):
    task = {"type": kind, "index": 0}
    text = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", text)

    with pytest.raises(errors.ClusterConfigError, match=message):
        call()


def test_a_port_in_use_is_reported_before_tensorflow_starts(monkeypatch):
    """Not by an abort of TensorFlow's server."""
    with socket.create_server(("", 0)) as other:
        cluster = WHOLE | {"ps": [f"localhost:{other.getsockname()[1]}"]}
        task = {"type": "ps", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))

        with pytest.raises(errors.PortInUseError, match=r"port \d+ .* is in use"):
            serve()
