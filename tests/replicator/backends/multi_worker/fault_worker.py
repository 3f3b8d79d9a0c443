"""What a worker of a cluster with a fault runs; it prints what it saw as JSON lines.

Every worker trains and checkpoints. The mode says what the victim does after some
steps, the first time it comes there.
"""

import os
import time
from pathlib import Path

import cluster_member
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
            cluster_member.send(at_fault=True, pid=os.getpid())
            if repl.worker_id == victim:
                misbehave(mode, repl)
            if mode == "other_step":
                repl._runtime.timeout_sec = FAULT_TIMEOUT_SEC
            if mode == "exchange":
                repl.assert_in_sync()
        loss = repl.reduce("mean", repl.run(training.step, training.batch(step)))
        cluster_member.send(
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
        cluster_member.send(error=type(error).__name__, message=str(error))
        try:
            repl.run(lambda: 1.0)
        except replicator.ReplicatorError as again:
            cluster_member.send(again=type(again).__name__)
        return
    cluster_member.send(done=True)


CASES = {"end": end}
