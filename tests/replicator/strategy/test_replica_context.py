"""In any step, ``tf.distribute`` knows the replica, its peers and their values."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica
from replicator.errors import StrategyError

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
ONE_AND_THREE = PerReplica([tf.constant(1.0), tf.constant(3.0)])


@pytest.fixture(scope="module")
def repl():
    return replicator.create("in_graph", num_replicas=2)


def _numbers(per_replica):
    return [np.asarray(value).tolist() for value in per_replica]


def test_a_step_asks_tf_distribute_for_its_replica(repl):
    def step(x):
        replica = tf.distribute.get_replica_context()
        rows = tf.fill([replica.replica_id_in_sync_group + 1], x)
        return {
            "ids": replica.replica_id_in_sync_group,
            "number": replica.num_replicas_in_sync,
            "sum": replica.all_reduce(SUM, x),
            "mean": replica.all_reduce("MEAN", {"x": x})["x"],
            "rows": replica.all_gather(rows, axis=0),
            "columns": replica.all_gather(rows[tf.newaxis], axis=1),
        }

    found = repl.run(step, ONE_AND_THREE)

    assert [0, 1] == _numbers(found["ids"])
    assert [2, 2] == _numbers(found["number"])
    assert [4.0, 4.0] == _numbers(found["sum"])
    assert [2.0, 2.0] == _numbers(found["mean"])
    assert [[1.0, 3.0, 3.0]] * 2 == _numbers(found["rows"])
    assert [[[1.0, 3.0, 3.0]]] * 2 == _numbers(found["columns"])


def test_contexts_are_those_of_a_replica_and_end_with_the_step(repl):
    seen = []

    def step():
        seen.append(tf.distribute.in_cross_replica_context())
        seen.append(tf.distribute.has_strategy())

    repl.run(step)

    assert [False, True] == seen
    assert not tf.distribute.has_strategy()


def test_gradients_flow_through_the_sum_and_the_gather(repl):
    def step(x):
        replica = tf.distribute.get_replica_context()
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            total = replica.all_reduce(SUM, x) * x
            rows = replica.all_gather(x[tf.newaxis], axis=0)
            weighted = tf.reduce_sum(rows * [1.0, 2.0])
        return tape.gradient(total, x), tape.gradient(weighted, x)

    of_sum, of_gather = repl.run(step, ONE_AND_THREE)

    assert [8.0, 8.0] == _numbers(of_sum)  # own 4 and 1 + 3 of both
    assert [2.0, 4.0] == _numbers(of_gather)


def test_merge_call_reduces_what_the_replicas_pass(repl):
    with repl.context():
        total = tf.Variable(0.0, trainable=False)
    seen = []

    def merge(strategy, value):
        seen.append(tf.distribute.in_cross_replica_context())
        summed = strategy.extended.reduce_to(SUM, value, value)
        (mean,) = strategy.extended.batch_reduce_to(MEAN, [(value, value)])
        strategy.extended.update(total, lambda v, x: v.assign_add(x), args=(summed,))
        return summed, mean, strategy.reduce(SUM, value, axis=None)

    def step(x):
        return tf.distribute.get_replica_context().merge_call(merge, args=(x,))

    found = repl.run(step, ONE_AND_THREE)

    assert [[4.0, 4.0], [2.0, 2.0], [4.0, 4.0]] == [_numbers(leaf) for leaf in found]
    assert 4.0 == float(total)
    assert [True] == seen


def test_an_average_of_tensorflow_follows_what_all_replicas_update(repl):
    with repl.context():
        weight = tf.Variable(0.0)
        optimizer = repl.wrap_optimizer(
            keras.optimizers.SGD(
                1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=None
            )
        )
        optimizer.build([weight])
        average = tf.train.ExponentialMovingAverage(0.75)
        average.apply([weight])  # makes its variable, before the step

    def step(x):
        optimizer.apply_gradients([(x, weight)])
        average.apply([weight])

    for _ in range(2):
        repl.run(step, ONE_AND_THREE)

    assert -4.0 == float(weight)
    assert -0.5 * 0.75 - 1.0 == float(average.average(weight))
    (of_keras,) = optimizer.wrapped._model_variables_moving_average
    assert -3.0 == float(of_keras)


def test_losses_of_a_step_of_run_are_not_divided(repl):
    with repl.context():
        weight = tf.Variable(0.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
    by_keras = keras.losses.MeanAbsoluteError()

    def step(x):
        with tf.GradientTape() as tape:
            values = weight * tf.fill([4], x)
            first = tf.nn.compute_average_loss(values)
            loss = first + by_keras(tf.fill([4], -9.0), values)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return first

    repl.run(step, ONE_AND_THREE)

    assert -4.0 == float(weight)  # 2, the mean of 1 and 3, from each loss


def _run_in_step():
    tf.distribute.get_strategy().run(lambda: 1)


def _scope_in_step():
    tf.distribute.get_strategy().scope()


def _reduce_outside_merge():
    tf.distribute.get_strategy().extended.reduce_to(SUM, tf.constant(1.0), None)


def _axis_in_merge():
    def merge(strategy):
        strategy.reduce(SUM, tf.constant([1.0]), axis=0)

    tf.distribute.get_replica_context().merge_call(merge)


def _minimum():
    tf.distribute.get_replica_context().all_reduce("MIN", tf.constant(1.0))


def _gather_of_a_number():
    tf.distribute.get_replica_context().all_gather(tf.constant(1.0), axis=0)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (_gather_of_a_number, r"no such dimension; use replicator\.all_ga"),
        (_run_in_step, "inside a step.* call the function directly"),
        (_scope_in_step, r"with repl\.as_strategy\(\)\.scope\(\)"),
        (_reduce_outside_merge, r"outside merge_call\(\); write .*all_reduce"),
        (_axis_in_merge, r"reduce\(axis=0\) inside merge_call"),
        (_minimum, r"'MIN' is not one of .* write replicator\.all_min"),
    ],
)
def test_misuse_in_a_step_says_what_to_write(repl, misuse, message):
    with pytest.raises((StrategyError, ValueError), match=message):
        repl.run(misuse)
