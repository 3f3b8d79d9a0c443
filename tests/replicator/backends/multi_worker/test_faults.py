"""Workers that die, hang or go astray: a clear error in bounded time, never a hang."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

import replicator
from replicator.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("fault_worker.py")
SPEC = importlib.util.spec_from_file_location("fault_worker", SCRIPT)
fault_worker = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fault_worker)

START_SEC = 300.0
# The heartbeat is 5 where a worker is stopped; diagnosis may take 7 more.
ERROR_SEC = 120.0


def cluster_of(tmp_path, mode, num_workers=2, victim=1):
    """A cluster of workers that train until the fault."""
    return LocalCluster(
        [sys.executable, str(SCRIPT), str(tmp_path), mode, str(victim)],
        num_workers=num_workers,
        env={
            "NUM_WORKERS": str(num_workers),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        },
        log_dir=tmp_path / "logs",
    )


def reported(cluster, worker):
    """What a worker has written as JSON lines."""
    text = cluster.output("worker", worker)
    # The last line may still be being written.
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def field(cluster, worker, name):
    """The last value of a field that a worker told, or None."""
    values = [line[name] for line in reported(cluster, worker) if name in line]
    return values[-1] if values else None


def wait_until(condition, cluster, timeout_sec):
    """Waits for a condition, at most so long."""
    deadline = time.monotonic() + timeout_sec
    while not condition():
        assert time.monotonic() < deadline, cluster.tails()
        time.sleep(0.05)


def losses(cluster, worker=0):
    """Loss by step; a step that was run again counts as it was last."""
    return {x["step"]: x["loss"] for x in reported(cluster, worker) if "step" in x}


def undisturbed():
    """The losses without workers and without a fault, on the joined batches."""
    repl = replicator.create("single")
    _, _, train_step = fault_worker.make_training(repl)
    batches = [
        [fault_worker.values_of(step, worker) for worker in range(2)]
        for step in range(fault_worker.NUM_STEPS)
    ]
    runs = [
        repl.run(train_step, replicator.PerReplica([tf.concat(batch, axis=0)]))
        for batch in batches
    ]
    return {step: float(loss[0]) for step, loss in enumerate(runs)}


@pytest.mark.parametrize(
    ("num_workers", "victim", "mode", "how"),
    [
        (3, 1, "killed", signal.SIGKILL),
        (2, 0, "killed", signal.SIGKILL),
        (2, 1, "stopped", signal.SIGSTOP),
    ],
    ids=["worker killed", "chief killed", "worker stopped"],
)
def test_a_lost_worker_ends_the_step_on_all_others(
    tmp_path, num_workers, victim, mode, how
):
    """The error names the worker, comes in bounded time, and stays."""
    with cluster_of(tmp_path, mode, num_workers, victim) as cluster:
        wait_until(
            lambda: field(cluster, victim, "at_fault"), cluster, timeout_sec=START_SEC
        )
        cluster.kill("worker", victim, how)
        others = [worker for worker in range(num_workers) if worker != victim]
        wait_until(
            lambda: all(field(cluster, w, "again") for w in others), cluster, ERROR_SEC
        )
        for worker in others:
            message = field(cluster, worker, "message")
            assert "WorkerLostError" == field(cluster, worker, "error"), message
            assert "WorkerLostError" == field(cluster, worker, "again")
            assert re.search(rf"worker {victim} \(localhost:\d+\) ", message), message
            assert "restart the job, from its last checkpoint" in message
        wait_until(
            lambda: not any(cluster.is_running("worker", w) for w in others),
            cluster,
            ERROR_SEC,
        )
        cluster.kill("worker", victim)
        codes = cluster.wait(ERROR_SEC)

        assert {0} == {codes["worker", worker] for worker in others}


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("hang", r"worker 1 \(.*\) (is alive, but did not come|did not answer)"),
        ("other_step", r"worker 1 \(.*\) was at the first run of step '.*other_step'"),
    ],
)
def test_a_worker_that_goes_astray_is_named(tmp_path, mode, message):
    """Waits are bounded by timeout_sec; the error says who and what."""
    with cluster_of(tmp_path, mode, num_workers=2) as cluster:
        wait_until(lambda: field(cluster, 1, "at_fault"), cluster, START_SEC)
        wait_until(lambda: field(cluster, 0, "error"), cluster, ERROR_SEC)
        text = field(cluster, 0, "message")

        assert "WorkerLostError" == field(cluster, 0, "error"), text
        assert re.search(message, text), text


def test_a_killed_job_goes_on_from_its_last_checkpoint(tmp_path):
    """All processes are started again; the loss curve is that of no fault."""
    with cluster_of(tmp_path, "killed", num_workers=2) as cluster:
        wait_until(lambda: field(cluster, 1, "at_fault"), cluster, START_SEC)
        cluster.kill("worker", 1)
        wait_until(lambda: field(cluster, 0, "error"), cluster, ERROR_SEC)
        for worker in range(2):
            cluster.restart("worker", worker)
        cluster.check(START_SEC)
        restarted = losses(cluster)

        assert undisturbed() == pytest.approx(restarted, rel=1e-5)
        # A limit per collective would leave a thread for each of them, for its length.
        assert all(field(cluster, worker, "num_threads") <= 4 for worker in range(2))


def test_a_worker_that_never_starts_is_named(tmp_path):
    """The others wait timeout_sec, no longer."""
    with cluster_of(tmp_path, "none", num_workers=2) as cluster:
        start = time.monotonic()
        cluster.kill("worker", 1)
        wait_until(lambda: field(cluster, 0, "error"), cluster, START_SEC)
        waited_sec = time.monotonic() - start
        message = field(cluster, 0, "message")

        assert "UnreachableError" == field(cluster, 0, "error")
        assert re.search(
            r"1 of 2 processes did not answer within 3 s: worker 1 at localhost",
            message,
        ), message
        assert waited_sec < START_SEC


def test_a_port_in_use_is_told(tmp_path):
    """Before TensorFlow's server fails in its own words."""
    cluster = cluster_of(tmp_path, "none", num_workers=1)
    with cluster:
        cluster.kill("worker", 0)
        port = int(cluster.addresses["worker"][0].rpartition(":")[2])
        with socket.create_server(("", port)):
            cluster.restart("worker", 0)
            wait_until(lambda: field(cluster, 0, "error"), cluster, START_SEC)

            assert "PortInUseError" == field(cluster, 0, "error")
            assert re.search(rf"port {port} .* is in use", field(cluster, 0, "message"))
