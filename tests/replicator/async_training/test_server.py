"""replicator.server refuses what it cannot serve, before TensorFlow starts anything."""

import contextlib
import json
import socket

import pytest

from replicator import errors, server


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
