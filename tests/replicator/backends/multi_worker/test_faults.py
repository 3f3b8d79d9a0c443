"""Workers that die, hang or go astray: a clear error in bounded time, never a hang.

Every worker trains and checkpoints. The mode says what the victim does after some
steps, the first time it comes there.
"""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import case_cluster
import damaging
import pytest
from damaging import until
from tiny_models import Training

import replicator
from replicator.cluster import workers

FAULT_STEP = 12
NUM_STEPS = 20
SAVE_EVERY = 4
# So long that no worker on a slow machine is taken for lost.
TIMEOUT_SEC = 60.0
# Of a wait that is in vain.
FAULT_TIMEOUT_SEC = 1.0
FOR_EVER_SEC = 600.0


def make_training(repl):
    return Training(repl, "dense", "momentum")


def count_waiting_threads():
    """Threads of this process that TensorFlow started for its collectives."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("collective_ops") for name in names)


def misbehave(mode, repl):
    if mode != "other_step":
        time.sleep(FOR_EVER_SEC)

    def other_step():
        return replicator.all_sum(1.0)

    repl.run(other_step)


def train(repl, folder, mode, victim):
    training = make_training(repl)
    manager = training.make_manager(folder / "checkpoints")
    manager.restore()
    first = int(training.optimizer.iterations)
    for step in range(first, NUM_STEPS):
        here = folder / f"worker_{repl.worker_id}_came_to_the_fault"
        if step == FAULT_STEP and not here.exists():
            here.touch()
            case_cluster.send(at_fault=True, pid=os.getpid())
            if repl.worker_id == victim:
                misbehave(mode, repl)
            if mode == "other_step":
                repl._runtime.timeout_sec = FAULT_TIMEOUT_SEC
            if mode == "exchange":
                repl.assert_in_sync()
        loss = repl.reduce("mean", repl.run(training.step, training.batch(step)))
        case_cluster.send(
            step=step, loss=float(loss), num_threads=count_waiting_threads()
        )
        if (step + 1) % SAVE_EVERY == 0:
            manager.save(step + 1)


def set_up(folder, *, mode, victim, num_workers):
    if mode == "stopped":
        # For the report of a worker that sends none.
        workers._GRACE_SEC = FAULT_TIMEOUT_SEC
    return folder, mode, victim, num_workers


def end(folder, mode, victim, num_workers):
    repl = replicator.create(
        "multi_worker",
        num_replicas=num_workers,
        timeout_sec=TIMEOUT_SEC,
        heartbeat_timeout_sec=TIMEOUT_SEC if mode == "killed" else 5.0,
    )
    try:
        train(repl, folder, mode, victim)
    except replicator.ReplicatorError as error:
        case_cluster.send(error=type(error).__name__, message=str(error))
        try:
            repl.run(lambda: 1.0)
        except replicator.ReplicatorError as again:
            case_cluster.send(again=type(again).__name__)
        return
    case_cluster.send(done=True)


CASES = {"end": end}


pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
START_SEC = 300.0
# The heartbeat is 5 where a worker is stopped; diagnosis may take 7 more.
ERROR_SEC = 120.0


@contextlib.contextmanager
def cluster_of(tmp_path, mode, num_workers=2, victim=1):
    with case_cluster.started(
        "test_faults",
        tmp_path,
        path=FOLDER,
        options={"mode": mode, "victim": victim, "num_workers": num_workers},
        num_workers=num_workers,
    ) as running:
        yield running.cluster


def field(cluster, worker, name):
    return case_cluster.last(case_cluster.received(cluster, ("worker", worker)), name)


def losses(cluster, worker=0):
    sent = case_cluster.received(cluster, ("worker", worker))
    return {x["step"]: x["loss"] for x in sent if "step" in x}


def undisturbed():
    training = make_training(replicator.create("single"))
    return dict(enumerate(training.run(NUM_STEPS)))


def port_of(cluster, worker):
    return int(cluster.addresses["worker"][worker].rpartition(":")[2])


def check_lost(cluster, num_workers, victim, how=signal.SIGKILL):
    """Loses a worker at the fault: the step must end on all others, and they too."""
    until(lambda: field(cluster, victim, "at_fault"), cluster.tails, START_SEC)
    cluster.kill("worker", victim, how)
    check_others_end(cluster, num_workers, victim)


def check_others_end(cluster, num_workers, victim):
    others = [worker for worker in range(num_workers) if worker != victim]
    until(
        lambda: all(field(cluster, w, "again") for w in others),
        cluster.tails,
        ERROR_SEC,
    )
    for worker in others:
        message = field(cluster, worker, "message")
        assert "WorkerLostError" == field(cluster, worker, "error"), message
        assert "WorkerLostError" == field(cluster, worker, "again")
        assert re.search(rf"worker {victim} \(localhost:\d+\) ", message), message
        assert "restart the job from its last checkpoint" in message
        assert "did not reach" not in message  # which comes after timeout_sec
    until(
        lambda: not any(cluster.is_running("worker", w) for w in others),
        cluster.tails,
        ERROR_SEC,
    )
    cluster.kill("worker", victim)
    codes = cluster.wait(ERROR_SEC)

    assert {0} == {codes["worker", worker] for worker in others}


@pytest.mark.parametrize(
    ("victim", "mode", "how"),
    [
        pytest.param(
            *(0, "killed", signal.SIGKILL), id="chief killed", marks=pytest.mark.full
        ),
        pytest.param(
            *(1, "stopped", signal.SIGSTOP), id="worker stopped", marks=pytest.mark.full
        ),
        pytest.param(*(1, "exchange", signal.SIGSTOP), id="stopped in an exchange"),
        pytest.param(*(0, "stopped", signal.SIGSTOP), id="chief stopped"),
        pytest.param(
            *(0, "exchange", signal.SIGSTOP),
            id="chief stopped in an exchange",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_lost_worker_ends_the_step_on_the_other(tmp_path, victim, mode, how):
    with cluster_of(tmp_path, mode, victim=victim) as cluster:
        check_lost(cluster, 2, victim, how)


def test_a_dead_worker_is_known_from_a_stranger_at_its_port(tmp_path):
    with cluster_of(tmp_path, "exchange") as cluster:
        until(lambda: field(cluster, 1, "at_fault"), cluster.tails, START_SEC)
        cluster.kill("worker", 1)
        with damaging.listening(port_of(cluster, 1), "silent"):
            check_others_end(cluster, 2, victim=1)
        assert "has exited; a sync" in field(cluster, 0, "message")


def test_a_worker_that_goes_astray_is_named(tmp_path):
    message = r"worker 1 \(.*\) was at the first run of step '.*other_step'"
    with cluster_of(tmp_path, "other_step", num_workers=2) as cluster:
        until(lambda: field(cluster, 1, "at_fault"), cluster.tails, START_SEC)
        until(lambda: field(cluster, 0, "error"), cluster.tails, ERROR_SEC)
        text = field(cluster, 0, "message")

        assert "WorkerLostError" == field(cluster, 0, "error"), text
        assert re.search(message, text), text


def test_a_killed_job_ends_and_continues_from_its_last_checkpoint(tmp_path):
    with cluster_of(tmp_path, "killed", num_workers=3, victim=0) as cluster:
        check_lost(cluster, 3, victim=0)
        for worker in range(3):
            cluster.restart("worker", worker)
        cluster.check(START_SEC)
        restarted = losses(cluster)

        assert undisturbed() == pytest.approx(restarted, rel=1e-5)
        # A limit per collective would leave a thread for each of them, for its length.
        assert all(field(cluster, worker, "num_threads") <= 4 for worker in range(3))
