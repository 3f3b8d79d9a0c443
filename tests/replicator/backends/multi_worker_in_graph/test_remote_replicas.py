"""Replicas on two machines train like one, and what lives and travels where."""

import re
import socket
import time

import numpy as np
import pytest
import strangers
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
    """The sum goes there and back; of the gather, two slices there and four back."""
    text = client.value("explained")

    assert re.search(r"worker 0 \(localhost:\d+\), client: replicas \[0, 1\]", text)
    assert re.search(r"worker 1 \(localhost:\d+\), server: replicas \[2, 3\]", text)
    assert f"worker 0 {4000 + 16000} bytes, worker 1 {4000 + 8000} bytes" in text


def test_variables_are_stored_by_the_workers_that_own_them(client):
    """sharded_update='parameters': training is that of one device, bytes add up."""
    found = client.value("sharded_parameters")
    one = Training(replicator.create("single"), "deep", "clipped adamw")
    one.run_between(0, 10)

    assert {WORKER_0, WORKER_1} == set(found["devices"])
    for want, got in zip(one.weights(), found["weights"], strict=True):
        np.testing.assert_allclose(want, got, rtol=2e-4, atol=1e-5)
    moved = re.search(r"moves (\d+) bytes by reductions and (\d+)", found["explained"])
    sent = re.findall(r"worker [01] (\d+) bytes", found["explained"])
    assert found["bytes"] == int(moved[1]) == sum(map(int, sent))


@pytest.mark.parametrize("num_replicas", [2, 12])
def test_workers_send_each_other_a_few_tensors_per_step(client, num_replicas):
    """A bucket of gradients there and back, and what the other worker returns as one.

    That is a vector per type of outputs, and one of statistics, whatever the number of
    replicas. Transfers of nothing are at most four per replica, as on one machine.
    """
    found = client.value("executed_graphs")[str(num_replicas)]

    assert found["num_nodes"] > 100  # it is the step that was counted
    assert 2 < found["num_data"] <= 8
    assert found["num_controls"] <= 4 * num_replicas


def test_each_replica_returns_its_own_outputs_of_any_type(client):
    """Of the other worker, numbers of one type and of few bytes come as one tensor."""
    once, loop = client.value("outputs")

    assert [
        [0.0, 1.0, 2.0, 3.0],
        [[[r], [r + 0.5]] for r in range(4)],
        [10, 11, 12, 13],
        [False, False, True, True],
        ["0", "1", "2", "3"],
        [[], [0], [0, 1], [0, 1, 2]],
        [[[float(r)] * 200] * 200 for r in range(4)],
    ] == once
    assert once == loop


# Sums over 12 examples in another order, twelve steps deep: a few float32 roundings.
RTOL_FLOAT32 = 3e-5


def assert_same(expected, actual):
    np.testing.assert_allclose(
        expected["losses"], actual["losses"], rtol=RTOL_FLOAT32, atol=1e-6
    )
    for one, other in zip(expected["weights"], actual["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=RTOL_FLOAT32, atol=1e-5)


def test_gradients_that_are_sent_together_train_as_if_each_was_sent_alone(
    client, cases
):
    """Bit by bit: packing changes no sum, nor its order; and as one device does."""
    found = client.value("packed_and_alone")

    assert found["packed"] == found["alone"]
    assert_same(cases.wide_training(replicator.create("single")), found["packed"])


def test_a_replica_that_is_split_over_workers_trains_as_one_device(client, cases):
    """Each worker has one of two layers, and what lies between them crosses."""
    alone = cases.split_training(
        replicator.create(
            "single", devices=["CPU:0", "CPU:0"], logical_devices_per_replica=2
        )
    )
    expected = {"losses": alone.run(cases.NUM_STEPS), "weights": alone.weights()}
    actual = client.value("split_over_workers")
    tasks = [re.search(r"task:(\d)", name)[1] for name in actual["devices"]]

    assert ["0", "0", "1", "1"] == tasks
    assert_same(expected, actual)


def test_an_uneven_epoch_on_workers_is_that_of_one_device(client, check_epoch):
    """Three of four replicas have no example in its last step."""
    check_epoch([client.value("an_uneven_epoch")])


def test_workers_of_a_control_train_alone(client):
    """Each worker's losses are those of its own batch and variables."""
    actual = client.value("without_communication")

    assert np.transpose(actual["losses"]) == pytest.approx(
        np.array([[2.0, 1.8, 1.6], [4.0, 3.2, 2.4]])
    )
    assert "Nothing is communicated" in actual["explained"]
    assert "sends nothing but inputs to other workers" in actual["explained"]


def own_address():
    """An address of this machine besides loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def port_of(cluster, worker):
    return int(cluster.addresses["worker"][worker].rpartition(":")[2])


def test_ports_of_a_local_cluster_answer_this_machine_only(client):
    """The client's and the server's, at every address but those of loopback."""
    client.value("places")
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address besides loopback to try from")
    for worker in range(2):
        port = port_of(client.cluster, worker)
        socket.create_connection(("127.0.0.1", port), 5.0).close()
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), 0.5)


# The last one, as it ends the cluster's client.
def test_a_server_ends_when_its_client_is_killed(stepping_client):
    """Within seconds, in the middle of a step, whoever takes the client's port."""
    cluster = stepping_client.cluster
    start = time.monotonic()
    cluster.kill("worker", 0)
    with strangers.listening(port_of(cluster, 0), "garbage"):
        codes = cluster.wait(timeout_sec=60)

    assert 0 == codes["worker", 1]
    assert time.monotonic() - start < 60
    output = cluster.output("worker", 1)
    assert "worker 1 serves at localhost:" in output
    assert output.rstrip().endswith(
        "replicator.server: the client has exited, and another process listens at "
        "its address"
    )
