"""What a worker of a cluster with a fault runs; it prints what it saw as JSON lines.

python fault_worker.py FOLDER MODE [VICTIM]

Every worker trains and checkpoints. MODE says what worker VICTIM, else worker 1, does
after some steps, the first time it comes there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import replicator

FAULT_STEP = 12
NUM_STEPS = 20
SAVE_EVERY = 4
# So long that no worker on a slow machine is taken for lost.
TIMEOUT_SEC = 60.0
# Of a wait that is in vain.
FAULT_TIMEOUT_SEC = 3.0
FOR_EVER_SEC = 600.0


def tell(**fields):
    """Writes one line."""
    sys.stdout.write(json.dumps({"time": time.time(), **fields}) + "\n")
    sys.stdout.flush()


def make_training(repl):
    """A model, its optimizer and its step."""
    keras.utils.set_random_seed(1)
    with repl.context():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.9))

    def train_step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch) - 1.0) ** 2)
        weights = model.trainable_variables
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    return model, optimizer, train_step


def values_of(step, worker_id):
    """A worker's batch of a step."""
    rng = np.random.default_rng(1000 * step + worker_id)
    return tf.constant(rng.normal(size=(4, 8)), tf.float32)


def count_waiting_threads():
    """Threads of this process that TensorFlow started for its collectives."""
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("collective_ops") for name in names)


def misbehave(mode, repl):
    """What the victim does instead of its step."""
    if mode != "other_step":
        time.sleep(FOR_EVER_SEC)

    def other_step():
        return replicator.all_sum(1.0)

    repl.run(other_step)


def train(repl, folder, mode, victim):
    """Trains to the end, or to the fault."""
    model, optimizer, train_step = make_training(repl)
    manager = repl.make_checkpoint_manager(
        folder / "checkpoints", model=model, optimizer=optimizer
    )
    manager.restore()
    first = int(optimizer.iterations)
    for step in range(first, NUM_STEPS):
        here = folder / f"worker_{repl.worker_id}_came_to_the_fault"
        if step == FAULT_STEP and not here.exists():
            here.touch()
            tell(at_fault=True, pid=os.getpid())
            if repl.worker_id == victim:
                misbehave(mode, repl)
            if mode in ("hang", "other_step"):
                repl._runtime.timeout_sec = FAULT_TIMEOUT_SEC
        inputs = replicator.PerReplica([values_of(step, repl.worker_id)])
        loss = repl.reduce("mean", repl.run(train_step, inputs))
        tell(step=step, loss=float(loss), num_threads=count_waiting_threads())
        if (step + 1) % SAVE_EVERY == 0:
            manager.save(step + 1)


def main():
    """Trains; says how it ended."""
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    victim = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    try:
        repl = replicator.create(
            "multi_worker",
            num_replicas=int(os.environ["NUM_WORKERS"]),
            timeout_sec=FAULT_TIMEOUT_SEC if mode == "none" else TIMEOUT_SEC,
            heartbeat_timeout_sec=5.0 if mode == "stopped" else TIMEOUT_SEC,
        )
        train(repl, folder, mode, victim)
    except replicator.ReplicatorError as error:
        tell(error=type(error).__name__, message=str(error))
        try:
            repl.run(lambda: 1.0)
        except replicator.ReplicatorError as again:
            tell(again=type(again).__name__)
        except NameError:
            pass
        return
    tell(done=True)


if __name__ == "__main__":
    main()
