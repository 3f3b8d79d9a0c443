"""Users' variables and replicas' copies agree, one variable at a time."""

import math

import numpy as np
import tensorflow as tf

import replicator


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
