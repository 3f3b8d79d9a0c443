"""Workers that die or hang end the step with an error that names them, in time."""

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import case_cluster
import numpy as np
import pytest
import tiny_models
from messages import wait_until

import replicator
from replicator import errors, server
from replicator.cluster import liveness, membership
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.local_cluster import free_ports

FOLDER = Path(__file__).parent
NUM_STEPS = 12
START_SEC = 240
TRAINING_SEC = 900.0


def read_steps(folder):
    path = folder / "steps.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # The last line may still be being written.
    return dict(map(json.loads, text[: text.rfind("\n") + 1].splitlines()))


@pytest.mark.processes
def test_training_survives_the_loss_of_workers(tmp_path):
    """Killed or hung: one error in time, and the same loss curve after a restart."""
    alone = tiny_models.Training(replicator.create("single"), "wide", "momentum")
    expected = alone.run(NUM_STEPS)

    with case_cluster.started(
        "training",
        tmp_path,
        path=FOLDER,
        runners=[("worker", 0)],
        num_workers=2,
        case_timeout_sec=TRAINING_SEC,
    ) as running:
        found = running.cluster
        worker = rf"worker 1 \({found.addresses['worker'][1]}\)"
        wait_until(lambda: len(read_steps(tmp_path)) >= 6, found, START_SEC)
        killed = time.monotonic()
        found.kill("worker", 1)
        wait_until(lambda: not found.is_running("worker", 0), found, 120)

        assert time.monotonic() - killed < 60
        assert re.match(
            rf"WorkerLostError: {worker} was lost during a step; restart the whole",
            running.error("train"),
        )

        before = read_steps(tmp_path)
        (tmp_path / "steps.jsonl").unlink()
        found.restart("worker", 1)
        found.restart("worker", 0)
        wait_until(lambda: NUM_STEPS + 3 in read_steps(tmp_path), found, START_SEC)
        steps = before | read_steps(tmp_path)
        os.kill(found.pid("worker", 1), signal.SIGSTOP)
        wait_until(lambda: not found.is_running("worker", 0), found, 120)

        assert re.match(
            rf"WorkerLostError: no response from {worker} for 4 s; restart the",
            running.error("train"),
        )
        os.kill(found.pid("worker", 1), signal.SIGCONT)
        codes = found.wait(timeout_sec=120)

        assert 0 == codes["worker", 1]
    actual = [steps[step] for step in range(NUM_STEPS)]
    np.testing.assert_allclose(expected, actual, rtol=3e-5, atol=1e-6)


@pytest.fixture
def config():
    """A cluster of two that nobody started; this process is worker 0."""
    ports = free_ports(2)
    addresses = {"worker": tuple(f"localhost:{port}" for port in ports)}
    return ClusterConfig(addresses=addresses, kind="worker", index=0)


def test_workers_that_do_not_answer_are_named(config, monkeypatch):
    """The wait for servers is bounded, and the message has the command."""
    monkeypatch.setattr(membership._tf_compat, "live_variables", list)
    address = config.address_of(1)
    start = time.monotonic()

    with pytest.raises(
        errors.UnreachableError,
        match=rf"no response from 1 of 1 processes within 0.3 s: worker 1 at "
        rf"{address};.*"
        r"every worker except 0 runs `python -m replicator.server`",
    ):
        membership.connect(config, timeout_sec=0.3)

    assert time.monotonic() - start < 60


def test_only_worker_0_is_the_client(config):
    other = ClusterConfig(addresses=config.addresses, kind="worker", index=1)

    with pytest.raises(
        errors.ClusterConfigError,
        match=r"this process is worker 1, but with pattern='in_graph' only worker 0 "
        r"\(localhost:\d+\) runs .* run `python -m replicator.server` here",
    ):
        membership.connect(other, timeout_sec=1)


def test_variables_come_after_the_replicator(config):
    """TensorFlow would lose them without a word."""
    import tensorflow as tf

    kept = tf.Variable(1.0, name="early")

    with pytest.raises(
        errors.ClusterConfigError, match=r"variables exist already .* create the repl"
    ):
        membership.connect(config, timeout_sec=1)

    assert 1.0 == kept.numpy()


def test_a_port_in_use_is_reported_before_tensorflow_starts(config, monkeypatch):
    """For the client as for servers."""
    monkeypatch.setattr(membership._tf_compat, "live_variables", list)
    port = int(config.address.rpartition(":")[2])
    with (
        socket.create_server(("", port)),
        pytest.raises(errors.PortInUseError, match=rf"port {port} .* is in use"),
    ):
        membership.connect(config, timeout_sec=1)


def test_hanging_up_closes_the_connections_to_one_address():
    """Those to others stay."""
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
        closed, kept = (socket.create_connection(("localhost", p)) for p in ports)
        with closed, kept:
            liveness.close_connections(f"localhost:{ports[0]}")
            kept.settimeout(0.1)

            assert b"" == closed.recv(1)
            with pytest.raises(TimeoutError):
                kept.recv(1)


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
