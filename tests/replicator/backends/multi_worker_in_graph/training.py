"""A training that saves every few steps, and starts again where it was saved.

Worker 0 trains and appends one line per step to ``steps.jsonl``. It ends with an error
only: of the loss of the other worker.
"""

import json
import time

import tiny_models

import replicator
from replicator.cluster import liveness

NUM_STEPS = 12
STEPS_PER_SAVE = 4
WORKER_TIMEOUT_SEC = 4.0


def set_up(folder):
    """Where it writes; a worker that hangs is found out soon after its time is over."""
    liveness._WATCH_POLL_SEC, liveness._ANSWER_SEC = 0.2, 1.0
    return (folder,)


def train(folder):
    repl = replicator.create(
        "multi_worker_in_graph",
        num_replicas=2,
        connect_timeout_sec=240,
        failure_detection_timeout_sec=WORKER_TIMEOUT_SEC,
    )
    training = tiny_models.Training(repl, "wide", "momentum")
    manager = training.make_manager(folder / "checkpoints", inputs=training.inputs)
    manager.restore()
    step = int(training.optimizer.iterations)
    while True:
        with (folder / "steps.jsonl").open("a", encoding="utf-8") as lines:
            (loss,) = training.run(1)
            lines.write(json.dumps([step, loss]) + "\n")
        step += 1
        if step < NUM_STEPS:
            if step % STEPS_PER_SAVE == 0:
                manager.save()
            time.sleep(0.05)  # a step in which somebody can be killed


CASES = {"train": train}
