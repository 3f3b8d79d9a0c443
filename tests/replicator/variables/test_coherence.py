"""Users' variables and replicas' copies agree, one variable at a time."""

import math

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.core.step import traced_once
from replicator.variables import values, writes

SUM = tf.VariableAggregation.SUM
ON_READ = tf.VariableSynchronization.ON_READ


def _floats(values):
    return [float(v) for v in values]


def test_setting_one_variable_leaves_the_copies_of_others(in_graph, per_replica):
    """A new learning rate does not average replica-local statistics."""
    with in_graph.context():
        rate = tf.Variable(1.0, trainable=False)
        statistic = tf.Variable(0.0, trainable=False)

    def write(x):
        statistic.assign(x)
        return rate * x

    def read():
        return rate * statistic

    in_graph.run(write, per_replica([1.0, 3.0]))
    rate.assign(2.0)

    assert [2.0, 6.0] == _floats(in_graph.run(read))
    assert 2.0 == float(statistic)


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


def test_a_run_that_failed_forgets_no_change(in_graph, per_replica):
    """What was set before it is what all replicas use after it."""
    with in_graph.context():
        weight = tf.Variable(1.0)
        statistic = tf.Variable(0.0, trainable=False)

    def step(x):
        tf.debugging.assert_less(x, 10.0)
        statistic.assign(x)
        return weight * x

    in_graph.run(step, per_replica([1.0, 3.0]))
    weight.assign(5.0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        in_graph.run(step, per_replica([20.0, 20.0]))

    assert [5.0, 10.0] == _floats(in_graph.run(step, per_replica([1.0, 2.0])))
    in_graph.assert_in_sync()


def test_fingerprints_of_small_integers_do_not_collide():
    """All 4,096 vectors of three digits below 16 have fingerprints of their own."""
    numbers = np.arange(0, 4096, 3)
    vectors = np.stack([numbers // 256, numbers // 16 % 16, numbers % 16], axis=1)

    @tf.function
    def of_each(all_of_them):
        return tf.map_fn(
            lambda one: writes.fingerprint(one)[0],
            all_of_them,
            fn_output_signature=tf.int64,
        )

    found = of_each(tf.constant(vectors, tf.int32)).numpy()

    assert len(numbers) == len(set(found.tolist()))


@pytest.mark.parametrize("dtype", [tf.float32, tf.int32])
def test_summed_variables_read_as_the_sum_and_restore_as_they_read(
    in_graph, per_replica, dtype
):
    """A counter with aggregation SUM: 1 + 3 is 4; set to 11, then 1 + 3 more is 15."""
    with in_graph.context():
        counter = tf.Variable(
            tf.cast(0, dtype), trainable=False, synchronization=ON_READ, aggregation=SUM
        )

    def step(x):
        counter.assign_add(tf.cast(x, dtype))

    xs = per_replica([1.0, 3.0])
    in_graph.run(step, xs)
    counted = counter.numpy()
    counter.assign(tf.cast(11, dtype))
    in_graph.run(step, xs)

    assert 4 == counted
    assert 15 == counter.numpy()


def test_integers_without_aggregation_and_first_replica_read_as_replica_0(
    in_graph, per_replica
):
    """The mean of integers would round, and the user may ask for the first."""
    with in_graph.context():
        whole = tf.Variable(0, trainable=False)
        first = tf.Variable(
            0.0,
            trainable=False,
            synchronization=ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def step(x):
        whole.assign_add(tf.cast(x, tf.int32))
        first.assign_add(x)

    in_graph.run(step, per_replica([1.0, 4.0]))

    assert (1, 1.0) == (whole.numpy(), first.numpy())


def test_a_mean_of_large_halves_outside_is_finite(in_graph, per_replica):
    """Their sum is not: float16 ends at 65,504."""
    with in_graph.context():
        value = tf.Variable(0.0, dtype=tf.float16, trainable=False)

    def write(x):
        value.assign(tf.cast(x, tf.float16))

    in_graph.run(write, per_replica([60000.0, 50000.0]))

    assert 54976.0 == float(value)


def test_statistics_of_replicas_on_one_device_are_read_by_one_function(monkeypatch):
    """32 replicas of a ResNet had 32 functions of 106 reads each."""
    made = []

    def counting(function, **options):
        made.append(function)
        return traced_once(function, **options)

    monkeypatch.setattr(values, "traced_once", counting)
    repl = replicator.create("in_graph", num_replicas=4, devices=["CPU:0"] * 4)
    with repl.context():
        statistics = [tf.Variable(0.0, trainable=False) for _ in range(2)]

    def step(x):
        for factor, statistic in enumerate(statistics, 1):
            statistic.assign(factor * x)

    repl.run(step, replicator.PerReplica([tf.constant(float(r)) for r in range(4)]))

    assert [1.5, 3.0] == _floats(statistics)
    assert 1 == len(made)
