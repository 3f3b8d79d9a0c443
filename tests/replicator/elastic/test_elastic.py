"""Elastic jobs: workers are killed, hosts come and go, the supervisor is stopped."""

import json
import os
import random
import signal
import sys
import time

import elastic_trainer as trainer
import numpy as np
import pytest
from elastic_job import Job, check_epochs, counted_steps, num_repeated, stop

import replicator

NUM_FAULTS = int(os.environ.get("ELASTIC_FAULTS", "0"))
FAULTS = ["kill", "kill", "kill the chief", "hang", "go", "come"]

pytestmark = pytest.mark.processes


def check_as_undisturbed(job, num_steps):
    """Each example of each epoch once, and the losses and weights of one replica."""
    folder = job.folder / "undisturbed"
    folder.mkdir()
    weights = trainer.train(replicator.create("single"), folder, num_steps)
    steps, losses = counted_steps(job.records())
    assert num_steps == len(steps)
    check_epochs(steps)
    expected = [json.loads(line) for line in (folder / "log-0-0").open()]
    np.testing.assert_allclose([r["loss"] for r in expected], losses, rtol=1e-4)
    found = json.loads((job.folder / "weights.json").read_text())
    for want, value in zip(weights, found, strict=True):
        np.testing.assert_allclose(want, value, rtol=1e-4, atol=1e-6)


def test_a_job_outlives_its_chief_and_its_supervisor(tmp_path):
    """The chief is killed, the supervisor is stopped; three workers finish."""
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    with Job(tmp_path, hosts[:2], "--cooldown-sec", "0").start(100) as job:
        job.until_steps(12)
        stop(job.pids(1)[0])
        job.until_after(1)
        job.until_steps(7)
        assert 128 + signal.SIGTERM == job.stop()
    assert "127.0.0.2/0 was killed by SIGKILL" in job.text
    assert not [path for path in job.memory.rglob("*") if path.is_file()]
    job.set_hosts(hosts)
    with job.start(40):
        assert 0 == job.process.wait(150), job.text
    assert "starts 3 workers on 127.0.0.2, 127.0.0.3, 127.0.0.4" in job.text
    after_kill, after_stop = num_repeated(job.records())
    assert 0 < after_kill <= 5
    assert 0 == after_stop
    check_as_undisturbed(job, 40)


@pytest.mark.full
def test_one_program_with_served_workers_goes_on(tmp_path):
    hosts = ["127.0.0.2", "127.0.0.3"]
    job = Job(tmp_path, hosts, "--served", "--cooldown-sec", "0")
    with job.start(25, "multi_worker_in_graph"):
        job.until_steps(7)
        stop(job.pids(1)[0])
        assert 0 == job.process.wait(150), job.text
    assert max(num_repeated(job.records())) <= 5
    check_as_undisturbed(job, 25)


@pytest.mark.skipif(not NUM_FAULTS, reason="takes 15 s for each of ELASTIC_FAULTS")
def test_faults_at_random_lose_nothing(tmp_path):
    """Four of five hosts train: workers are killed or hang, hosts go and come back."""
    draw = random.Random(int(os.environ.get("ELASTIC_SEED", "1")))
    hosts = [f"127.0.0.{number}" for number in range(2, 7)]
    listed, waits = hosts[:4], []
    options = "--cooldown-sec", "1", "--max-restarts", "1000"
    with Job(tmp_path, listed, *options).start(10**6) as job:
        while len(waits) < NUM_FAULTS:
            job.until_steps(1 + draw.randrange(12))
            start = job.current()
            pids, places = job.pids(start), job.places(start)
            rank = draw.randrange(len(pids))
            fault = draw.choice(FAULTS)
            if fault == "come":
                absent = [host for host in hosts if host not in listed]
                if not absent or len(places) == 4:
                    continue  # there is no room for another one
                listed.append(draw.choice(absent))
            elif fault == "go" and len(listed) > 2:
                listed.remove(places[rank])
            elif fault == "kill the chief":
                rank = 0
            job.set_hosts(listed)
            since = time.monotonic()
            if fault != "come" and not stop(pids[rank], hangs=fault == "hang"):
                continue  # all workers are being started again just now
            if fault == "go":
                job.lose_memory(places[rank])
            job.until_after(start)
            waits.append((fault, round(time.monotonic() - since, 1)))
        assert 128 + signal.SIGTERM == job.stop()
    num_steps = job.last_step() + 20
    with job.start(num_steps):
        assert 0 == job.process.wait(150), job.text
    repeated = num_repeated(job.records())
    sys.stderr.write(f"{waits=} {repeated=} {num_steps=}\n")
    assert max(repeated) <= 5
    check_as_undisturbed(job, num_steps)
