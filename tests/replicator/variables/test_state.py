"""Variables between and inside steps: restored, tampered with, local on request."""

import gc
import math

import covering
import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

import replicator


def test_drift_is_detected(mirrored, per_replica):
    repl = mirrored()
    with repl.context():
        weight = tf.Variable([1.0, 2.0], name="weight")

    def step(x):
        weight.assign_sub(replicator.all_mean(x))

    repl.run(step, per_replica([np.float32([1, 2]), np.float32([3, 5])]))
    entry = next(e for e in repl._table.entries() if e.variable is weight)
    entry.copies[1].assign_add([1e-6, 0.0])

    with pytest.raises(
        replicator.ReplicasOutOfSyncError, match=r"1 mirrored variables differ.*weight"
    ):
        repl.assert_in_sync()


def test_a_variable_that_becomes_local_is_local_in_earlier_steps_too(in_graph):
    with in_graph.context():
        counter = tf.Variable(0.0, trainable=False, name="counter")

    def read():
        return counter.read_value()

    def write():
        replica_id = replicator.get_replica_context().replica_id
        counter.assign_add(tf.cast(replica_id, tf.float32) + 1)
        return counter.read_value()

    in_graph.run(read)
    in_graph.run(write)

    assert [1.0, 2.0] == [float(v) for v in in_graph.run(read)]
    assert 1.5 == float(counter)


@pytest.mark.parametrize(
    "name", [pytest.param("single", marks=pytest.mark.full), "in_graph"]
)
def test_memory_does_not_grow_over_thousands_of_steps(name):
    num_steps = 3000 if covering.is_full() else 1500
    repl = replicator.create(name, num_replicas=1 if name == "single" else 2)
    with repl.context():
        weight = tf.Variable(tf.zeros([1000]))
        local = tf.Variable(tf.zeros([10]), trainable=False)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.ones([1000])).repeat()
    )

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        local.assign_add(x[:10] * tf.random.uniform([]))
        return loss

    def size_after(num_steps):
        for _ in range(num_steps):
            repl.run(step, inputs)
        gc.collect()
        return psutil.Process().memory_info().rss

    sizes, most = [size_after(500)], num_steps * 2**10
    # What other tests left may grow once; a leak grows every time.
    while len(sizes) < 2 or (len(sizes) < 4 and sizes[-1] - sizes[-2] >= most):
        sizes.append(size_after(num_steps))

    assert sizes[-1] - sizes[-2] < most, sizes


def test_a_replica_local_variable_of_unknown_shape_grows(in_graph):
    rows = tf.Variable(tf.zeros([1, 2]), shape=[None, 2], trainable=False)
    batch = replicator.PerReplica([tf.ones([1, 2]), 3.0 * tf.ones([1, 2])])

    def step(x):
        rows.assign(tf.concat([rows, x], axis=0))
        return rows[:, 0]

    found = [in_graph.run(step, batch) for _ in range(2)][1]
    outside = rows.numpy()[:, 0].tolist()
    rows.assign(tf.ones([2, 2]))  # fewer rows: nothing of the old ones stays
    reset = in_graph.run(step, batch)

    assert [[0.0, 1.0, 1.0], [0.0, 3.0, 3.0]] == [x.numpy().tolist() for x in found]
    assert [0.0, 2.0, 2.0] == outside
    assert [[1.0, 1.0, 1.0], [1.0, 1.0, 3.0]] == [x.numpy().tolist() for x in reset]
    assert "replica-local 48" in in_graph.summary() or "72" in in_graph.summary()


def test_copies_of_a_stock_strategy_are_equal_after_a_failure(per_replica):
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    with repl.context():
        weight = tf.Variable(1.0)
        generator = tf.random.Generator.from_seed(1, alg="philox")
    first, second = repl.strategy.experimental_local_results(weight)
    states = repl.strategy.experimental_local_results(generator.state)
    states[1].assign([9, 9, 9])
    before = [state.numpy().tolist() for state in states]
    second.assign(5.0)

    def step(x):
        tf.debugging.assert_less(x, 1.0)
        return x

    with pytest.raises(tf.errors.InvalidArgumentError):
        repl.run(step, per_replica([1.0, 1.0]))

    assert [1.0, 1.0] == [float(copy) for copy in (first, second)]
    assert before == [state.numpy().tolist() for state in states]


def _floats(values):
    return [float(v) for v in values]


def test_a_statistic_that_is_not_a_number_stays_where_it_arose(in_graph, per_replica):
    """NaN differs from itself, but nobody set it outside: replica 0 keeps its own."""
    with in_graph.context():
        statistic = tf.Variable(0.0, trainable=False)
        other = tf.Variable(0.0, trainable=False)

    def write(x):
        statistic.assign(x)
        other.assign(tf.where(tf.math.is_nan(x), 5.0, x))

    def read():
        return statistic.read_value(), other.read_value()

    in_graph.run(write, per_replica([1.0, math.nan]))
    for _ in range(2):
        first, second = in_graph.run(read)

    np.testing.assert_array_equal([1.0, math.nan], _floats(first))
    assert [1.0, 5.0] == _floats(second)


def test_a_mean_of_large_halves_outside_is_finite(in_graph, per_replica):
    with in_graph.context():
        value = tf.Variable(0.0, dtype=tf.float16, trainable=False)

    def write(x):
        value.assign(tf.cast(x, tf.float16))

    in_graph.run(write, per_replica([60000.0, 50000.0]))

    assert 54976.0 == float(value)


def test_reading_statistics_takes_no_function_per_replica(monkeypatch):
    """32 replicas of a ResNet had 32 functions of 106 reads each."""
    make, counts = tf.function, []
    for num_replicas in (2, 6):
        made = []
        monkeypatch.setattr(
            tf,
            "function",
            lambda *args, made=made, **kw: made.append(args) or make(*args, **kw),
        )
        repl = replicator.create(
            "in_graph", num_replicas=num_replicas, devices=["CPU:0"] * num_replicas
        )
        with repl.context():
            statistics = [tf.Variable(0.0, trainable=False) for _ in range(2)]

        def step(x, statistics=statistics):
            for factor, statistic in enumerate(statistics, 1):
                statistic.assign(factor * x)

        ids = [tf.constant(float(r)) for r in range(num_replicas)]
        repl.run(step, replicator.PerReplica(ids))
        mean = (num_replicas - 1) / 2
        assert [mean, 2 * mean] == _floats(statistics)
        counts.append(len(made))

    assert 0 < counts[0] == counts[1]
