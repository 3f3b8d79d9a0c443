"""Workers that die or hang end the step with an error that names them, in time."""

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
from cluster_member import wait_until

import replicator

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
