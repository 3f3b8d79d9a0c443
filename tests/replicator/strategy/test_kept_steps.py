"""What a graph of the user's makes of a step: one trace, and one call."""

import pytest
import tensorflow as tf

import replicator


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


def _statistic():
    return tf.Variable(
        0.0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


@pytest.mark.parametrize(("num_devices", "is_kept"), [(1, True), (2, False)])
def test_a_graph_of_the_user_s_is_traced_once_and_optimized_without_the_step(
    num_devices, is_kept
):
    """Though the step has copies of variables made; on several devices it is inlined.

    There the handles of all variables would be sent to where the call is.
    """
    devices = [f"CPU:{index % num_devices}" for index in range(2)]
    repl = replicator.create("in_graph", num_replicas=2, devices=devices)
    strategy, traces = repl.as_strategy(), []
    with strategy.scope():
        statistic = _statistic()
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
