"""Variables, randomness and pipelines when replicas live on two machines."""

import re

import numpy as np
import pytest
from tiny_models import Training

import replicator

pytestmark = pytest.mark.processes

WORKER_0 = "/job:worker/replica:0/task:0/device:CPU:0"
WORKER_1 = "/job:worker/replica:0/task:1/device:CPU:0"


def test_pipelines_live_on_the_workers_that_they_feed(client):
    """In every mode; each receives its place in the job."""
    found = client.value("places")

    assert {
        "SINGLE": [[0, 1]],
        "PER_WORKER": [[0, 2], [1, 2]],
        "PER_REPLICA": [[0, 4], [1, 4], [2, 4], [3, 4]],
    } == {mode: facts["contexts"] for mode, facts in found.items()}
    assert {
        "SINGLE": [WORKER_0],
        "PER_WORKER": [WORKER_0, WORKER_1],
        "PER_REPLICA": [WORKER_0, WORKER_0, WORKER_1, WORKER_1],
    } == {mode: facts["devices"] for mode, facts in found.items()}
    assert {
        "SINGLE": [0, 1, 2, 3],
        "PER_WORKER": [0, 1, 100, 101],
        "PER_REPLICA": [0, 100, 200, 300],
    } == {mode: facts["batches"] for mode, facts in found.items()}
    assert {
        "SINGLE": [4, 5, 6, 7],
        "PER_WORKER": [2, 3, 102, 103],
        "PER_REPLICA": [1, 101, 201, 301],
    } == {mode: facts["ahead"] for mode, facts in found.items()}


def test_a_pipeline_of_another_worker_cannot_call_python(client):
    """It would run in the client's process; one SINGLE pipeline may."""
    found = client.value("python_in_a_pipeline")
    error = r"RemoteInputError: input pipeline 1 belongs to worker 1, but it calls Pyt"

    assert re.match(error, found["from_generator"])
    assert re.match(error, found["py_function"])
    assert "use InputReplicationMode.SINGLE" in found["py_function"]
    assert [1.0, 2.0] == found["single"]


def test_a_step_on_another_worker_reads_tables_and_cannot_call_python(client):
    """The message names the line and the device."""
    found = client.value("what_a_step_captures")

    assert [10.0, 20.0] == found["found"]
    assert re.search(
        rf"CaptureError: .*Python at .*client_cases\.py:\d+: .*{WORKER_1}",
        found["python"],
    )


def test_copies_that_drifted_are_named(client):
    """assert_in_sync fetches the copies of all workers."""
    found = client.value("drift")

    assert [WORKER_0, WORKER_0, WORKER_1, WORKER_1] == found["devices"]
    assert re.match(
        r"ReplicasOutOfSyncError: 1 mirrored variables differ between replicas: Vari",
        found["message"],
    )


def test_the_plan_says_where_replicas_are_and_what_travels(client):
    """The sum goes there and back; of the gather, two slices there and four back.

    Worker 1 returns both of each of its replicas, as one tensor.
    """
    text = client.value("explained")

    assert re.search(r"worker 0 \(localhost:\d+\), client: replicas \[0, 1\]", text)
    assert re.search(r"worker 1 \(localhost:\d+\), server: replicas \[2, 3\]", text)
    sent = re.findall(r"worker [01] (\d+) bytes in (\d+) tensors", text)
    both = [(4000 + 8000 + 2 * (4000 + 16000), 3 + 1), (4000 + 16000, 2)]
    assert both == sorted([(int(b), int(n)) for b, n in sent], reverse=True)


def test_variables_are_stored_by_the_workers_that_own_them(client):
    """sharded_update='parameters': training is that of one device, bytes add up."""
    found = client.value("sharded_parameters")
    one = Training(replicator.create("single"), "deep", "clipped adamw")
    one.run_between(0, 10)

    assert {WORKER_0, WORKER_1} == set(found["devices"])
    for want, got in zip(one.weights(), found["weights"], strict=True):
        np.testing.assert_allclose(want, got, rtol=2e-4, atol=1e-5)
    moved = re.search(r"moves (\d+) bytes by reductions and (\d+)", found["explained"])
    sent = re.findall(r"worker [01] (\d+) bytes in", found["explained"])
    assert found["bytes"] == int(moved[1])
    losses = 2 * 4  # of the replicas of worker 1
    assert int(moved[1]) + int(moved[2]) + losses == sum(map(int, sent))
