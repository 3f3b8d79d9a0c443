"""Gradients of collectives that no drawn program has, and results without use."""

import tensorflow as tf

import replicator
from replicator import PerReplica


def _run(repl, step, values):
    return repl.run(step, PerReplica([tf.constant(v) for v in values]))


def test_graph_gradients_communicate_too(in_graph):
    """``tf.gradients`` finds the same second derivative as nested tapes."""

    def step(x):
        y = replicator.all_sum(x) ** 2
        return tf.gradients(tf.gradients(y, x)[0] ** 2, x)[0]

    values = [1.0, 2.0]
    found = _run(in_graph, step, values)

    assert [192.0, 192.0] == [float(value) for value in found]


def test_the_gradient_of_an_extreme_is_split_over_those_that_have_it(in_graph):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = 3.0 * replicator.all_max(x)
        return tape.gradient(loss, x)

    assert [3.0, 3.0] == [float(value) for value in _run(in_graph, step, [2.0, 2.0])]


def test_a_result_that_nobody_uses_is_not_communicated(in_graph):
    """Replicas send nothing for it, and the collectives that are used keep order."""

    def step(x):
        replicator.all_sum(x)
        y = replicator.all_max(x)
        replicator.all_gather(x)
        return replicator.all_sum(y)

    found = _run(in_graph, step, [1.0, 2.0])

    assert [4.0, 4.0] == [float(value) for value in found]
    plan = in_graph.explain()
    assert "#0 all_reduce(max)" in plan
    assert "#1 all_reduce(sum)" in plan
    assert "#2" not in plan


def test_the_trace_does_not_take_an_operand_for_the_result(in_graph):
    """A shape that is computed from a constant's sum is that of the sum."""

    def step(x):
        size = replicator.all_sum(tf.constant(2))
        return tf.zeros([size]) + x

    found = _run(in_graph, step, [1.0, 2.0])

    assert [(4,), (4,)] == [value.shape for value in found]
