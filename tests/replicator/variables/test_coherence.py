"""Users' variables and replicas' copies agree, one variable at a time."""

import math

import numpy as np
import tensorflow as tf

import replicator
from replicator.core.step import traced_once
from replicator.variables import coherence, values


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


def test_fingerprints_of_small_integers_do_not_collide():
    """All 4,096 vectors of three digits below 16 have fingerprints of their own."""
    numbers = np.arange(0, 4096, 3)
    vectors = np.stack([numbers // 256, numbers // 16 % 16, numbers % 16], axis=1)

    @tf.function
    def of_each(all_of_them):
        return tf.map_fn(
            lambda one: coherence.fingerprint(one)[0],
            all_of_them,
            fn_output_signature=tf.int64,
        )

    found = of_each(tf.constant(vectors, tf.int32)).numpy()

    assert len(numbers) == len(set(found.tolist()))


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
