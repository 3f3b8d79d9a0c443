"""Workers that die or hang end the step with an error that names them, in time.

Worker 0 trains, appends one line per step to ``steps.jsonl``, saves every few steps and
starts again where it was saved. It ends with an error only: of the loss of the other.
"""

import json
import os
import re
import signal
import time
from pathlib import Path

import case_cluster
import numpy as np
import pytest
import tiny_models
from damaging import until

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


FOLDER = Path(__file__).parent
START_SEC = 240
TRAINING_SEC = 900.0


def read_steps(folder):
    path = folder / "steps.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # The last line may still be being written.
    return dict(map(json.loads, text[: text.rfind("\n") + 1].splitlines()))


@pytest.mark.processes
def test_training_survives_the_loss_of_workers(tmp_path):
    alone = tiny_models.Training(replicator.create("single"), "wide", "momentum")
    expected = alone.run(NUM_STEPS)

    with case_cluster.started(
        "test_remote_faults",
        tmp_path,
        path=FOLDER,
        runners=[("worker", 0)],
        num_workers=2,
        case_timeout_sec=TRAINING_SEC,
    ) as running:
        found = running.cluster
        worker = rf"worker 1 \({found.addresses['worker'][1]}\)"
        until(lambda: len(read_steps(tmp_path)) >= 6, found.tails, START_SEC)
        killed = time.monotonic()
        found.kill("worker", 1)
        until(lambda: not found.is_running("worker", 0), found.tails, 120)

        assert time.monotonic() - killed < 60
        assert re.match(
            rf"WorkerLostError: {worker} was lost during a step; restart the whole",
            running.error("train"),
        )

        before = read_steps(tmp_path)
        (tmp_path / "steps.jsonl").unlink()
        found.restart("worker", 1)
        found.restart("worker", 0)
        until(lambda: NUM_STEPS + 3 in read_steps(tmp_path), found.tails, START_SEC)
        steps = before | read_steps(tmp_path)
        os.kill(found.pid("worker", 1), signal.SIGSTOP)
        until(lambda: not found.is_running("worker", 0), found.tails, 120)

        assert re.match(
            rf"WorkerLostError: no response from {worker} for 4 s; restart the",
            running.error("train"),
        )
        os.kill(found.pid("worker", 1), signal.SIGCONT)
        codes = found.wait(timeout_sec=120)

        assert 0 == codes["worker", 1]
    actual = [steps[step] for step in range(NUM_STEPS)]
    np.testing.assert_allclose(expected, actual, rtol=3e-5, atol=1e-6)
