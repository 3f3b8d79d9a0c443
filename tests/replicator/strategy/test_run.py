"""What programs for ``tf.distribute`` write: ``strategy.run``, and in any step."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica, StrategyError

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@pytest.fixture(scope="module")
def strategy():
    return replicator.create("in_graph", num_replicas=2).as_strategy()


@pytest.fixture
def one_and_three(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant(1.0 + 2.0 * ctx.replica_id_in_sync_group)
    )


def _numbers(strategy, value):
    return [x.numpy().tolist() for x in strategy.experimental_local_results(value)]


def test_a_replicator_has_one_strategy():
    repl = replicator.create("in_graph", num_replicas=2)

    assert repl.as_strategy() is repl.as_strategy()
    with repl.scope() as entered:
        assert repl.as_strategy() is entered is tf.distribute.get_strategy()
        variable = tf.Variable(1.0)
    assert 2 == repl.as_strategy().num_replicas_in_sync
    assert repl.as_strategy().extended.variable_created_in_scope(variable)


@pytest.mark.parametrize("is_in_function", [False, True])
def test_run_takes_and_returns_what_tf_distribute_does(
    strategy, one_and_three, is_in_function
):
    def step(x, factor, kind, more):
        replica = tf.distribute.get_replica_context()
        rows = tf.RaggedTensor.from_row_lengths([x, x], [0, 2])
        ids = replica.replica_id_in_sync_group
        return {kind: x * factor + more["z"], "ids": (ids, None), "rows": rows}

    def program(x):
        args = (x, tf.constant(10.0), "scaled")
        return strategy.run(step, args=args, kwargs={"more": {"z": 1.0}})

    found = (tf.function(program) if is_in_function else program)(one_and_three)

    assert [11.0, 31.0] == _numbers(strategy, found["scaled"])
    assert [0, 1] == _numbers(strategy, found["ids"][0])
    assert found["ids"][1] is None
    rows = strategy.experimental_local_results(found["rows"])
    assert [[[], [1.0, 1.0]], [[], [3.0, 3.0]]] == [r.to_list() for r in rows]


def test_python_arguments_and_new_shapes_are_steps_of_their_own(strategy):
    def step(x, power):
        return tf.distribute.get_replica_context().all_reduce(SUM, x**power)

    cubed = strategy.run(step, args=(tf.constant([2.0]), 3))
    squared = strategy.run(step, args=(tf.constant([2.0, 3.0]), 2))

    assert [[16.0], [16.0]] == _numbers(strategy, cubed)
    assert [[8.0, 18.0]] * 2 == _numbers(strategy, squared)


def test_a_step_uses_tensors_of_the_function_around_it(strategy):
    @tf.function
    def program(x):
        doubled = 2.0 * x
        return strategy.run(lambda: doubled + 1.0)

    for x in (1.0, 2.0):
        assert [2 * x + 1] * 2 == _numbers(strategy, program(tf.constant(x)))


def test_wrapped_optimizers_sum_what_keras_has_divided(strategy):
    repl = strategy.extended.replicator
    with strategy.scope():
        weight = tf.Variable(0.0)
        optimizer = repl.wrap_optimizer(
            keras.optimizers.SGD(1.0), global_clipnorm=100.0
        )

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(weight * tf.fill([4], x))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    values = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant([1.0, 3.0][ctx.replica_id_in_sync_group])
    )
    strategy.run(step, args=(values,))

    assert -2.0 == float(weight)


def test_reductions_over_replicas_and_axes(strategy, one_and_three):
    rows = strategy.run(
        lambda: tf.range(
            1.0, 3.0 + tf.cast(_replica().replica_id_in_sync_group, tf.float32)
        )
    )  # [1, 2] and [1, 2, 3]

    assert 4.0 == float(strategy.reduce(SUM, one_and_three, axis=None))
    assert 2.0 == float(strategy.reduce("MEAN", one_and_three, axis=None))
    assert 9.0 == float(strategy.reduce(SUM, rows, axis=0))
    assert 9.0 / 5.0 == pytest.approx(float(strategy.reduce(MEAN, rows, axis=0)))
    assert [1.0, 2.0, 1.0, 2.0, 3.0] == strategy.gather(rows, axis=0).numpy().tolist()
    assert 5.0 == float(strategy.reduce(MEAN, 5.0, axis=None))


def _replica():
    return tf.distribute.get_replica_context()


def test_the_step_of_a_function_lives_as_long_as_it():
    strategy = replicator.create("in_graph", num_replicas=2).as_strategy()

    def make():
        def step():
            return _replica().replica_id_in_sync_group

        return step

    step = make()
    strategy.run(step)
    called = weakref.ref(step)

    @tf.function
    def program():
        return strategy.run(make())

    program()
    del step
    gc.collect()

    assert called() is None
    assert [0, 1] == _numbers(strategy, program())


def _sums_a_number(strategy, _):
    strategy.reduce(SUM, 1.0, axis=None)


def _sums_unequal_shapes(strategy, _):
    rows = strategy.run(lambda: tf.fill([_replica().replica_id_in_sync_group + 1], 1.0))
    strategy.reduce(SUM, rows, axis=None)


def _runs_no_function(strategy, value):
    strategy.run(value)


def _takes_values_of_others(strategy, _):
    other = replicator.create("in_graph", num_replicas=3).as_strategy()
    values = other.experimental_distribute_values_from_function(lambda _: 1.0)
    strategy.run(lambda x: x, args=(values,))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (_sums_a_number, "not a value per replica; reduce what strategy.run"),
        (_sums_unequal_shapes, r"of different shapes, .*write axis=0"),
        (_runs_no_function, r"write strategy\.run\(fn, args=\(x, y\)\)"),
        (_takes_values_of_others, "has 3 values, but there are 2 replicas"),
    ],
)
def test_misuse_says_what_to_write(strategy, one_and_three, misuse, message):
    with pytest.raises(StrategyError, match=message):
        misuse(strategy, one_and_three)


def test_a_gradient_through_a_step_is_refused(strategy):
    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = strategy.reduce("SUM", strategy.run(tf.square, args=(x,)), None)
        return tape.gradient(total, x)

    with pytest.raises(
        StrategyError, match=r"gradient of what strategy\.run\(square\)"
    ):
        slope(tf.constant(2.0))


def test_an_update_outside_of_steps_is_refused_in_the_scope(strategy):
    with (
        pytest.raises(StrategyError, match=r"in scope\(\) but in no step, .*run\(step"),
        strategy.scope(),
    ):
        keras.optimizers.SGD(0.1).apply_gradients([(1.0, tf.Variable(1.0))])


def test_which_backend_has_a_strategy():
    stock = tf.distribute.OneDeviceStrategy("CPU:0")
    repl = object.__new__(replicator.MultiWorkerAsyncReplicator)  # needs no cluster

    assert stock is replicator.StrategyReplicator(stock).as_strategy()
    with pytest.raises(
        StrategyError, match=r"AsyncReplicator has no strategy: .*in_gr"
    ):
        repl.as_strategy()


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_a_failure_in_a_function_ends_with_an_assignment(placement):
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)
    strategy = repl.as_strategy()
    with strategy.scope():
        weight = tf.Variable(1.0, trainable=False)

    def step(x):
        own = tf.debugging.check_numerics(x, "a bad example")
        context = tf.distribute.get_replica_context()
        weight.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, own))

    @tf.function
    def train(values):
        strategy.run(step, args=(values,))

    def values_of(second):
        return strategy.experimental_distribute_values_from_function(
            lambda ctx: second if ctx.replica_id_in_sync_group else 1.0
        )

    train(values_of(2.0))
    saved = weight.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="a bad example"):
        train(values_of(float("nan")))
    weight.assign(saved)
    train(values_of(3.0))
    repl.assert_in_sync()

    assert 4.0 == saved
    assert 8.0 == weight.numpy()


def _outer(strategy, traces, statistic):
    def step(x):
        total = tf.distribute.get_replica_context().all_reduce("sum", x)
        statistic.assign(total)
        return total

    @tf.function
    def outer(x):
        traces.append(x)
        return strategy.run(step, args=(x,))

    return outer


@pytest.mark.parametrize(("num_devices", "is_kept"), [(1, True), (2, False)])
def test_a_graph_of_the_user_s_is_traced_once_and_optimized_without_the_step(
    num_devices, is_kept
):
    """Though the step makes copies of variables; on several devices it is inlined."""
    # There the handles of all variables would be sent to where the call is.
    devices = [f"CPU:{index % num_devices}" for index in range(2)]
    repl = replicator.create("in_graph", num_replicas=2, devices=devices)
    strategy, traces = repl.as_strategy(), []
    with strategy.scope():
        statistic = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
    outer = _outer(strategy, traces, statistic)

    for value in (2.0, 3.0):
        found = strategy.experimental_local_results(outer(tf.constant(value)))
        assert [2 * value] * 2 == [float(each) for each in found]
        assert 2 * value == float(statistic)

    assert 1 == len(traces)
    graph = outer.get_concrete_function(tf.constant(1.0)).graph
    called = [
        op.get_attr("f").name.endswith("_kept")
        for op in graph.get_operations()
        if op.type == "StatefulPartitionedCall" and op.outputs
    ]
    assert [is_kept] == called


# In any step, ``tf.distribute`` knows the replica, its peers and their values.

ONE_AND_THREE = PerReplica([tf.constant(1.0), tf.constant(3.0)])


@pytest.fixture(scope="module")
def repl():
    return replicator.create("in_graph", num_replicas=2)


def _values(per_replica):
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

    assert [0, 1] == _values(found["ids"])
    assert [2, 2] == _values(found["number"])
    assert [4.0, 4.0] == _values(found["sum"])
    assert [2.0, 2.0] == _values(found["mean"])
    assert [[1.0, 3.0, 3.0]] * 2 == _values(found["rows"])
    assert [[[1.0, 3.0, 3.0]]] * 2 == _values(found["columns"])


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

    assert [8.0, 8.0] == _values(of_sum)  # own 4 and 1 + 3 of both
    assert [2.0, 4.0] == _values(of_gather)


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

    assert [[4.0, 4.0], [2.0, 2.0], [4.0, 4.0]] == [_values(leaf) for leaf in found]
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
