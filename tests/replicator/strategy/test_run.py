"""``strategy.run`` and all around it: what programs for ``tf.distribute`` write."""

import gc
import weakref

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.errors import StrategyError

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
