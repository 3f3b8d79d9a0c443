"""No update is lost, and steps mean what they always do: two workers, two servers.

The chief of a test cluster runs the cases.
"""

import re
import sys
import tempfile
from pathlib import Path

import case_cluster
import keras
import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny_models
from case_cluster import check, check_messages

import replicator
from replicator import InputReplicationMode

NUM_STEPS = 60
NUM_CALLS = 3
MOST_CALLS = 50
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def make(**options):
    return replicator.create("async", **options)


def by_pipeline(ctx):
    """Batches of integers: 1 from pipeline 0, 2 from pipeline 1, and so on."""
    return tf.data.Dataset.from_tensors(float(ctx.input_pipeline_id + 1)).repeat()


def sgd(repl, *values):
    """Weights, and an optimizer that subtracts whole numbers exactly."""
    with repl.context():
        weights = [tf.Variable(value, name="kernel") for value in values]
        return weights, repl.wrap_optimizer(keras.optimizers.SGD(1.0))


def hammer(make_grad, lost_by_row):
    """Updates four variables by whole-number gradients from all workers at once."""
    repl = make()
    weights, optimizer = sgd(repl, *[tf.zeros([n, 2]) for n in (3, 40, 5, 7)])
    with repl.context():
        counter = tf.Variable(0, trainable=False)

    def step(value):
        optimizer.apply_gradients([(make_grad(w, value), w) for w in weights])
        counter.assign_add(tf.cast(value, tf.int32), read_value=False)

    inputs = repl.make_input_iterator(by_pipeline)
    for _ in range(NUM_CALLS):
        repl.schedule(step, inputs, num_steps=NUM_STEPS)
    repl.join()
    steps_per_worker = NUM_STEPS * NUM_CALLS
    left = [-steps_per_worker * (1.0 + 2.0) * times for times in lost_by_row]
    check([left] * 4, [np.unique(w.numpy()).tolist() for w in weights])
    check(2 * steps_per_worker, int(optimizer.iterations))
    check(steps_per_worker * (1 + 2), int(counter))
    check(2, len({w.device for w in weights}))
    assert optimizer.uses_fused_update
    # Every update is counted on both servers.
    check(2 * 2 * steps_per_worker, sum(repl.staleness().histogram.values()))
    for _ in range(MOST_CALLS):
        if repl.staleness().max:
            return
        repl.schedule(step, inputs, num_steps=NUM_STEPS)
        repl.join()
    raise AssertionError("no update came after one of another worker")


@case
def dense_sums_come_out_exactly():
    """A gradient of one integer, which has to wait for the weight."""
    hammer(lambda weight, value: 0.0 * weight + value, [1])


@case
def sparse_sums_come_out_exactly():
    """A gradient that names every row, and the first one twice."""

    def slices(weight, value):
        rows = tf.concat([tf.range(weight.shape[0]), [0]], axis=0)
        values = tf.fill([weight.shape[0] + 1, 2], value)
        return tf.IndexedSlices(values, rows, tf.constant(weight.shape.as_list()))

    hammer(slices, [2, 1])


@case
def rows_of_an_embedding_lose_nothing():
    """Rows 0, 1 and 4 lose 2, 1 and 1 in every step, on the servers where they are."""
    repl = make()
    with repl.context():
        layer = replicator.ShardedEmbedding(5, 2, num_parts=2, initializer="zeros")
    _, optimizer = sgd(repl)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([0, 0, 1, 4])))
        parts = layer.parts
        gradients = tape.gradient(loss, [part.value for part in parts])
        optimizer.apply_gradients(zip(gradients, parts, strict=True))

    repl.schedule(step, num_steps=NUM_STEPS)
    repl.join()
    lost = [2.0 * NUM_STEPS * times for times in (2, 1, 0, 0, 1)]
    check([[-of_row] * 2 for of_row in lost], layer.table().numpy().tolist())
    check(2, len({part.value.device for part in layer.parts}))


@case
def run_returns_the_last_result_of_every_replica():
    repl = make(num_replicas=4)
    (weight,), optimizer = sgd(repl, [0.0])

    def step(value):
        context = replicator.get_replica_context()
        optimizer.apply_gradients([(tf.reshape(value, [1]), weight)])
        sizes = (context.num_replicas, context.num_replicas_in_sync)
        return (
            context.replica_id,
            value,
            replicator.all_sum(value),
            tf.constant(sizes),
        )

    inputs = repl.make_input_iterator(by_pipeline, InputReplicationMode.PER_REPLICA)
    outputs = repl.run(step, inputs)
    check(
        [[0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], [3.0, 3.0, 7.0, 7.0], [[4, 2]] * 4],
        [[v.numpy().tolist() for v in values] for values in outputs],
    )
    check(-(1.5 + 3.5), float(weight[0]))  # of means within workers
    given = replicator.PerReplica([tf.constant(v) for v in range(4)])
    check([0, 2, 4, 6], [int(v) for v in repl.run(lambda x: x * 2, given)])
    plan = repl.explain()
    assert "2 workers with 2 replicas in sync each; variables" in plan, plan


@case
def the_end_of_the_data_is_an_error():
    """A rewind starts again, and counts continue."""
    repl = make()
    (weight,), optimizer = sgd(repl, 0.0)

    def step(value):
        optimizer.apply_gradients([(value, weight)])

    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.from_tensors(1.0))
    repl.run(step, inputs)
    check_messages({"OutOfRangeError": lambda: repl.run(step, inputs)})
    inputs.reinitialize()
    repl.run(step, inputs)
    check([-4.0, 4], [float(weight), int(optimizer.iterations)])


@case
def a_step_that_failed_on_one_worker():
    """Copies of 2 and 4 read as 3, which is assigned: 4 and 5 follow."""
    repl = make()
    with repl.context():
        state, limit = (tf.Variable(value, trainable=False) for value in (0.0, 9.0))

    def step(x):
        added = state.assign(state + x)
        with tf.control_dependencies([added]):
            tf.debugging.assert_less(x, limit)
        return state.read_value()

    inputs = repl.make_input_iterator(by_pipeline)
    repl.run(step, inputs)
    limit.assign(2.0)
    check_messages({"InvalidArgumentError": lambda: repl.run(step, inputs)})
    limit.assign(9.0)
    check(3.0, float(state))
    state.assign(3.0)
    check([4.0, 5.0], [float(value) for value in repl.run(step, inputs)])
    check(3, inputs.num_steps)


def trained(repl, num_steps):
    training = tiny_models.Training(repl, "batch norm")
    if num_steps:
        training.run(num_steps, num_steps_per_run=num_steps)
    return training


def state_of(training):
    variables = [*training.model.variables, *training.optimizer.wrapped.variables]
    return [np.asarray(v).tolist() for v in variables]


def checkpoints_go_to_and_from(make_other, num_steps_there):
    """Weights, slots, counters and statistics, number for number.

    Each of two workers has read four global batches.
    """
    training, folder = trained(make(), 4), tempfile.mkdtemp()
    training.make_manager(folder, inputs=training.inputs).save()
    there = trained(make_other(), 0)
    restored = there.make_manager(folder, inputs=there.inputs).restore()
    check(2 * 4, restored.step)
    check(
        [f"by skipping the {num_steps_there} steps that were read"],
        re.findall(r"^by skipping .* were read", restored.input_position),
    )
    check(state_of(training), state_of(there))
    back = trained(make_other(), 3)
    again = trained(make(), 0)
    again.make_manager(folder).restore(back.make_manager(tempfile.mkdtemp()).save())
    check(state_of(back), state_of(again))


@case
def checkpoints_go_to_and_from_in_graph():
    here = "/job:chief/replica:0/task:0/device:CPU:0"
    checkpoints_go_to_and_from(
        lambda: replicator.create("in_graph", num_replicas=2, devices=[here, here]), 8
    )


@case
def checkpoints_go_to_and_from_async():
    checkpoints_go_to_and_from(make, 4)


def weight_elsewhere():
    repl = make()
    weight, (_, optimizer) = tf.Variable(1.0, name="kernel"), sgd(repl)
    repl.run(lambda: optimizer.apply_gradients([(1.0, weight)]))


@case
def misuse_raises_an_actionable_error():
    def stock(num_replicas=2):
        return replicator.create("tf_parameter_server", num_replicas=num_replicas)

    modes, sgd = InputReplicationMode, keras.optimizers.SGD(1.0)
    wrong = {
        r"DeviceError: variable 'kernel:0' is on '/job:chief.*not a parameter "
        r"server; create models and optimizers inside `with repl.context\(\):`": (
            weight_elsewhere
        ),
        r"SINGLE distributes one pipeline to all workers.*PER_WORKER": (
            lambda: make().make_input_iterator(by_pipeline, modes.SINGLE)
        ),
        r"InputModeError: prefetch_to_device=2 .*\.prefetch\(2\)": (
            lambda: make().make_input_iterator(by_pipeline, prefetch_to_device=2)
        ),
        r"ReplicatorError: next\(\) and get_next\(\) cannot read in this "
        r"process.* on the workers; pass the iterator to run\(\)": (
            lambda: next(make().make_input_iterator(by_pipeline))
        ),
        r"TypeError: schedule\(\) does not take args=; write repl.schedule\(step": (
            lambda: make().schedule(tf.identity, args=(1,))
        ),
        r"DeviceError: num_replicas 3 of .* not divisible by its 2": (
            lambda: make(num_replicas=3)
        ),
        r"OptimizerOptionError: accumulation_steps=2 does not work with the "
        r"async backend: accumulated gradients of all workers would mix": (
            lambda: make().wrap_optimizer(sgd, accumulation_steps=2)
        ),
        r"PER_REPLICA does not work with ParameterServerStrategy.*PER_WORKER": (
            lambda: stock().make_input_iterator(by_pipeline, modes.PER_REPLICA)
        ),
        r"ReplicatorError: next\(\) and get_next\(\) cannot read in this process\b": (
            lambda: next(stock().make_input_iterator(by_pipeline))
        ),
        r"DeviceError: num_replicas 4 does not work.*1 per work.*use 2": (
            lambda: stock(4)
        ),
    }
    check_messages(wrong)


pytestmark = pytest.mark.processes


FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_servers")
    with case_cluster.started(
        "test_async",
        folder,
        path=FOLDER,
        has_chief=True,
        num_cpu_devices=2,
        num_workers=2,
        num_ps=2,
    ) as chief:
        yield chief


@pytest.mark.parametrize("case", CASES)
def test_two_servers(two_servers, case):
    """The chief finds nothing wrong."""
    assert two_servers.value(case) is None


@pytest.mark.parametrize(
    ("threads", "exit_code", "printed"),
    [
        ("one thread", 0, "count 4.0"),
        ("too late", 1, "set_inter_op_parallelism_threads(4) at the start"),
    ],
)
def test_steps_end_on_one_core(tmp_path, threads, exit_code, printed):
    """Requests that wait for each other need more threads than TensorFlow makes."""
    with case_cluster.ForkedCluster(
        [sys.executable, programs.__file__, "one_core_member", threads],
        env=case_cluster.ENV,
        num_workers=2,
        num_ps=1,
        has_chief=True,
        log_dir=tmp_path,
    ) as cluster:
        codes = cluster.wait(600, ["chief"])
        output = cluster.output("chief", 0)

    assert exit_code == codes["chief", 0], output
    assert printed in output
