"""Replicas on two machines train like one, and what lives and travels where.

The client of a cluster of two workers computes the cases in this order, while tests
read them. Once they have ended and there is a file ``continue``, it runs steps until it
is killed.
"""

import functools
import re
import socket
import time
from pathlib import Path

import case_cluster
import damaging
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_models
from case_cluster import check, check_close, check_message
from graphs import executed

import replicator
from replicator.engine import plan

NUM_STEPS = 12
WORKERS = [f"/job:worker/replica:0/task:{n}/device:CPU:0" for n in range(2)]
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@functools.cache
def make(num_replicas, **options):
    return replicator.create(
        "multi_worker_in_graph",
        num_replicas=num_replicas,
        connect_timeout_sec=60,
        **options,
    )


def set_up(_folder):
    make(2)
    return ()


def afterwards(folder):
    """Steps, so that the client can be killed in one; says when they have begun."""
    while not (folder / "continue").exists():  # the cores are left to other tests
        time.sleep(0.1)
    training = tiny_models.Training(make(2), "wide")
    training.run(4, num_steps_per_run=4)
    (folder / "stepping").touch()
    while True:
        training.run(4, num_steps_per_run=4)


def single(**options):
    return replicator.create("single", **options)


def wide_training(repl):
    return tiny_models.trajectory(repl, "wide", "momentum", num_steps=NUM_STEPS)


def check_trained(expected, found):
    np.testing.assert_allclose(found["losses"], expected["losses"], 3e-5, 1e-6)
    for want, got in zip(expected["weights"], found["weights"], strict=True):
        np.testing.assert_allclose(got, want, 3e-5, 1e-5)


@case
def an_uneven_epoch():
    """Its last step has one example, for one of four replicas."""
    return tiny_models.run_uneven_epoch(make(4))


@case
def a_replica_that_is_split_over_workers_trains_as_one_device():
    found = []
    for repl in (
        single(devices=[WORKERS[0]] * 2, logical_devices_per_replica=2),
        make(1, logical_devices_per_replica=2),
    ):
        training = tiny_models.Training(repl, "split", "momentum", mode="SINGLE")
        losses = training.run(NUM_STEPS)
        found.append({"losses": losses, "weights": training.weights()})
    check_trained(*found)
    devices = [weight.value.device for weight in training.model.weights]
    check([*[WORKERS[0]] * 2, *[WORKERS[1]] * 2], devices)


@case
def a_pipeline_of_another_worker_cannot_call_python():
    """It would run in the client's process; one SINGLE pipeline may."""
    repl, modes = make(2), replicator.InputReplicationMode

    def numbers():
        yield from (1.0, 2.0)

    def from_generator(ctx):
        spec = tf.TensorSpec([], tf.float32)
        return tf.data.Dataset.from_generator(numbers, output_signature=spec)

    def from_function(ctx):
        def add(x):
            return tf.py_function(lambda y: y + 1, [x], tf.int64)

        return tf.data.Dataset.range(3).map(add).map(lambda x: x * 2).prefetch(1)

    error = r"^RemoteInputError: input pipeline 1 belongs to worker 1, but it calls Pyt"
    check_message(error, lambda: repl.make_input_iterator(from_generator))
    check_message(
        rf"{error}.*use InputReplicationMode.SINGLE",
        lambda: repl.make_input_iterator(from_function, modes.PER_REPLICA),
    )
    inputs = repl.make_input_iterator(from_generator, modes.SINGLE)
    check([1.0, 2.0], [float(value) for value in repl.run(lambda x: x, inputs)])


@case
def a_step_on_another_worker_reads_tables_and_cannot_call_python():
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1], [10.0, 20.0]), 0.0
    )

    def python():
        return tf.py_function(lambda: 1.0, [], tf.float32)

    def look_up():
        return table.lookup(replicator.get_replica_context().replica_id)

    check([10.0, 20.0], [float(value) for value in make(2).run(look_up)])
    check_message(
        rf"^CaptureError: .*Python at .*test_remote_replicas\.py:\d+: .*{WORKERS[1]}",
        lambda: make(2).run(python),
    )


@case
def pipelines_live_on_the_workers_that_they_feed():
    """In every mode; each receives its place in the job."""
    repl, modes = make(4), replicator.InputReplicationMode
    # By mode: the number of pipelines, first batches, and a third with prefetching.
    for mode, count, first, third in (
        (modes.SINGLE, 1, [0, 1, 2, 3], [4, 5, 6, 7]),
        (modes.PER_WORKER, 2, [0, 1, 100, 101], [2, 3, 102, 103]),
        (modes.PER_REPLICA, 4, [0, 100, 200, 300], [1, 101, 201, 301]),
    ):
        contexts = []

        def input_fn(ctx, contexts=contexts):
            contexts.append((ctx.input_pipeline_id, ctx.num_input_pipelines))
            return tf.data.Dataset.range(10).map(lambda x: x + 100 * contexts[-1][0])

        inputs = repl.make_input_iterator(input_fn, mode)
        check([(pipeline, count) for pipeline in range(count)], contexts)
        check(first, [int(v) for v in repl.run(lambda x: x, inputs)])
        devices = [i._iterator_resource.device for i in inputs.iterators]
        check([WORKERS[2 * n // count] for n in range(count)], devices)
        ahead = repl.make_input_iterator(input_fn, mode, prefetch_to_device=2)
        check(third, [int(v) for v in repl.run(lambda x: x, ahead, num_steps=2)])


@case
def copies_that_drifted_are_named():
    repl = make(4)
    with repl.context():
        weight = tf.Variable([1.0, 2.0])
    repl.run(lambda: weight.assign_add(tf.ones([2]) * replicator.all_sum(1.0)))
    repl.assert_in_sync()
    entry = next(e for e in repl._table.entries() if e.variable is weight)
    check([WORKERS[n // 2] for n in range(4)], [copy.device for copy in entry.copies])
    entry.copies[2].assign([7.0, 7.0])
    check_message(
        r"^ReplicasOutOfSyncError: 1 mirrored variables differ between replicas: Vari",
        repl.assert_in_sync,
    )
    weight.assign([1.0, 2.0])  # the remedy that it names
    repl.run(lambda: weight + 0.0)
    repl.assert_in_sync()


@case
def the_plan_says_where_replicas_are_and_what_travels():
    """The sum goes there and back; of the gather, two slices there and four back."""
    repl = make(4)
    repl._programs = type(repl._programs)()

    def step():
        value = tf.ones([1000])  # 4000 bytes
        return replicator.all_sum(value), replicator.all_gather(value)

    repl.run(step)
    text = repl.explain()
    assert re.search(r"worker 0 \(localhost:\d+\), client: replicas \[0, 1\]", text)
    assert re.search(r"worker 1 \(localhost:\d+\), server: replicas \[2, 3\]", text)
    sent = f"worker 0 {4000 + 16000} bytes, worker 1 {4000 + 8000} bytes"
    assert sent in text, text


@case
def each_replica_returns_its_own_outputs_of_any_type():
    """Of the other worker, numbers of one type and of few bytes come as one tensor."""

    def step():
        replica = replicator.get_replica_context().replica_id
        value = tf.cast(replica, tf.float32)
        return (
            value,
            tf.stack([[value], [value + 0.5]]),
            replica + 10,
            replica > 1,
            tf.strings.as_string(replica),
            tf.range(replica),
            tf.fill([200, 200], value)[:, 0] + tf.zeros([200, 200]),
        )

    expected = [
        [0.0, 1.0, 2.0, 3.0],
        [[[r], [r + 0.5]] for r in range(4)],
        [10, 11, 12, 13],
        [False, False, True, True],
        [b"0", b"1", b"2", b"3"],
        [[], [0], [0, 1], [0, 1, 2]],
        [[[float(r)] * 200] * 200 for r in range(4)],
    ]
    for num_steps in (1, 2):
        outputs = make(4).run(step, num_steps=num_steps)
        for of_replicas, values in zip(expected, outputs, strict=True):
            check(of_replicas, [np.asarray(v).tolist() for v in values])


@case
def workers_send_each_other_a_few_tensors_per_step():
    """A bucket of gradients there and back, and what the other worker returns as one.

    That is a vector per type of outputs, and one of statistics, whatever the number of
    replicas. Transfers of nothing are at most four per replica, as on one machine.
    """
    for num_replicas in (2, 12):
        repl = make(num_replicas)
        training = tiny_models.Training(repl, "batch norm", "momentum")
        found = executed(lambda t=training: t.run(1), between_processes=True)
        assert found.num_nodes > 100  # it is the step that was counted
        assert 2 < found.num_data <= 8, found.num_data
        assert found.num_controls <= 4 * num_replicas, found.num_controls


@case
def the_plan_says_what_leaves_a_worker():
    """Parts are sent and not whole tensors; 64 bytes are of each of four replicas."""
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    calls = {
        replicator.all_sum: 64,
        replicator.reduce_scatter: 32,
        replicator.all_to_all: 64,
        functools.partial(replicator.permute, pairs=ring): 64,
        # Inside a worker.
        functools.partial(replicator.permute, pairs=ring[::2]): 0,
    }
    x = replicator.PerReplica([tf.zeros([16])] * 4)
    for call, size in calls.items():
        repl = make.__wrapped__(4)
        repl.run(call, x)
        text = repl.explain().splitlines()[-1]
        sizes = f"worker 0 {size} bytes, worker 1 {size} bytes"
        assert text.endswith(f"collectives send to other workers per step: {sizes}"), (
            text
        )


@case
def gradients_that_are_sent_together_train_as_if_each_was_sent_alone():
    packed = wide_training(make(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FUSE_BETWEEN_PROCESSES_BELOW_BYTES", 0)
        check(packed, wide_training(make(4)))
    check_trained(wide_training(single()), packed)


@case
def variables_are_stored_by_the_workers_that_own_them():
    repl = make.__wrapped__(4)  # its plan has no other training
    alone, training = (
        tiny_models.Training(of, "deep", "clipped adamw", **options)
        for of, options in (
            (single(), {}),
            (repl, {"sharded_update": "parameters"}),
        )
    )
    alone.run_between(0, 10)
    training.run_between(0, 10)
    weights = training.model.weights
    check(set(WORKERS), {w.value.device for w in weights})
    check_close(alone.weights(), training.weights())
    text = repl.explain()
    moved = re.search(r"moves (\d+) bytes by reductions and \d+", text)
    sent = sum(map(int, re.findall(r"worker [01] (\d+) bytes", text)))
    check([sum(w.numpy().nbytes for w in weights)] * 2, [int(moved[1]), sent])


@case
def workers_of_a_control_train_alone():
    repl = make(2, without_communication=True)
    with repl.context():
        weight = tf.Variable([1.0, 1.0])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        loss = tf.reduce_sum(weight * x)
        optimizer.apply_gradients([(tf.fill([2], x), weight)])
        return loss

    values = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
    for expected in ([2.0, 4.0], [1.8, 3.2], [1.6, 2.4]):
        losses = [float(loss) for loss in repl.run(step, values)]
        np.testing.assert_allclose(losses, expected, rtol=1e-6)
    text = repl.explain()
    assert "Nothing is communicated" in text, text
    assert "sends nothing but inputs to other workers" in text, text


FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    with case_cluster.started(
        "test_remote_replicas",
        folder,
        path=FOLDER,
        runners=[("worker", 0)],
        num_workers=2,
    ) as running:
        yield running, folder


@pytest.fixture(scope="module")
def client(served):
    return served[0]


@pytest.fixture
def stepping_client(served):
    """The client, once it has run all cases and runs steps until it is killed."""
    client, folder = served
    (folder / "continue").touch()
    client.wait_until((folder / "stepping").exists, "its endless steps")
    return client


pytestmark = pytest.mark.processes


EPOCH = an_uneven_epoch.__name__


@pytest.mark.parametrize("case", [c for c in CASES if c != EPOCH])
def test_two_workers(client, case):
    assert client.value(case) is None


def test_an_uneven_epoch_on_workers_is_that_of_one_device(client):
    """Three of four replicas have no example in its last step."""
    tiny_models.check_uneven_epoch([client.value(EPOCH)])


def own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def port_of(cluster, worker):
    return int(cluster.addresses["worker"][worker].rpartition(":")[2])


def test_ports_of_a_local_cluster_answer_this_machine_only(client):
    client.value(EPOCH)
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
    with damaging.listening(port_of(cluster, 0), "garbage"):
        codes = cluster.wait(timeout_sec=60)

    assert 0 == codes["worker", 1]
    assert time.monotonic() - start < 60
    output = cluster.output("worker", 1)
    assert "worker 1 serves at localhost:" in output
    assert output.rstrip().endswith(
        "replicator.server: the client has exited, and another process listens at "
        "its address"
    )
