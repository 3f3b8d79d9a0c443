"""Gradients of collectives, of orders 1 to 3 and in forward mode."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica

MOST_ORDERS = 3
# Values of all replicas are far from each other, so that extremes have one owner.
VALUES = np.array([[0.5, -1.25], [1.5, 0.75], [-0.25, 2.0], [0.25, -0.5]])
# Products of a few float64 numbers, in another order.
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def _shared(function):
    return lambda xs: [function(xs)] * len(xs)


def _rows(x):
    count = replicator.get_replica_context().num_replicas_in_sync
    return tf.stack([x * (row + 1.0) for row in range(count)])


def _all_rows(xs):
    return [tf.stack([x * (row + 1.0) for row in range(len(xs))]) for x in xs]


# What a collective does to the values of all replicas, for each replica.
JOINT = {
    "all_sum": _shared(tf.add_n),
    "all_mean": _shared(lambda xs: tf.add_n(xs) / len(xs)),
    "all_min": _shared(lambda xs: tf.reduce_min(tf.stack(xs), axis=0)),
    "all_max": _shared(lambda xs: tf.reduce_max(tf.stack(xs), axis=0)),
    "all_gather": _shared(tf.stack),
    "broadcast": _shared(lambda xs: xs[-1]),
    "reduce_scatter": lambda xs: tf.split(tf.add_n(_all_rows(xs)) / len(xs), len(xs)),
    "reduce_scatter_max": lambda xs: tf.split(
        tf.reduce_max(tf.stack(_all_rows(xs)), axis=0), len(xs)
    ),
    "all_to_all": lambda xs: [
        tf.stack(column) for column in zip(*map(tf.unstack, _all_rows(xs)), strict=True)
    ],
    "permute": lambda xs: [*xs[1:], 0.0 * xs[0]],
}
CALLS = {
    "broadcast": replicator.broadcast,
    "reduce_scatter": lambda x, _: replicator.reduce_scatter(_rows(x), "mean"),
    "reduce_scatter_max": lambda x, _: replicator.reduce_scatter(_rows(x), "max"),
    "all_to_all": lambda x, _: replicator.all_to_all(_rows(x)),
    "permute": lambda x, last: replicator.permute(x, [(r + 1, r) for r in range(last)]),
}


def _collective(name, x):
    if name not in CALLS:
        return getattr(replicator, name)(x)
    last = replicator.get_replica_context().num_replicas_in_sync - 1
    return CALLS[name](x, last)


def _target(x, y):
    """A number whose derivatives of all orders depend on all replicas."""
    return tf.reduce_sum(tf.sin(y) * y * x)


def _on_replica(name):
    """Gradients of all orders."""

    def step(x):
        gradients = []

        def target(k):
            if k == 0:
                return _target(x, _collective(name, x * x))
            return tf.reduce_sum(gradient(k) ** 2)

        def gradient(k):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = target(k - 1)
            gradients.append(tape.gradient(value, x))
            return gradients[-1]

        gradient(MOST_ORDERS)
        return gradients

    return step


def _on_one_device(name, values):
    """The same with the values of all replicas at hand: gradients of sums."""
    xs = [tf.constant(v) for v in values]
    found = []

    def targets(k):
        if k == 0:
            results = JOINT[name]([x * x for x in xs])
            return [_target(x, y) for x, y in zip(xs, results, strict=True)]
        return [tf.reduce_sum(g**2) for g in gradients(k)]

    def gradients(k):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            value = tf.add_n(targets(k - 1))
        found.append(tape.gradient(value, xs))
        return found[-1]

    gradients(MOST_ORDERS)
    return found


def _run(repl, step, values):
    return repl.run(step, PerReplica([tf.constant(v) for v in values]))


# Whatever is tried on one backend only is not tried on one replica.
@pytest.mark.covering(strength=1, prefer={"repl_once": [("in_graph_mirrored", 4)]})
@pytest.mark.parametrize("name", JOINT)
def test_gradients_are_those_of_one_device(repl_once, name):
    """A replica's gradient is that of all replicas' targets, at every order."""
    values = VALUES[: repl_once.num_replicas]

    found = _run(repl_once, _on_replica(name), values)

    of_one = _on_one_device(name, values)
    assert MOST_ORDERS == len(of_one) == len(found)
    for wants, gradients in zip(of_one, found, strict=True):
        for want, got in zip(wants, gradients, strict=True):
            np.testing.assert_allclose(got, want, **EXACT)


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


@pytest.mark.parametrize("name", JOINT)
def test_forward_mode_sees_the_other_replicas(in_graph, name):
    """The tangent of a result has the tangents of all replicas in it."""
    values = VALUES[: in_graph.num_replicas]
    tangents = np.linspace(1.0, 2.0, values.size).reshape(values.shape)

    def step(x, tangent):
        with tf.autodiff.ForwardAccumulator(x, tangent) as forward:
            y = _collective(name, x * x)
        return forward.jvp(y)

    found = in_graph.run(
        lambda both: step(*both),
        (
            PerReplica([tf.constant(v) for v in values]),
            PerReplica([tf.constant(t) for t in tangents]),
        ),
    )

    # The same with the values of all replicas at hand.
    xs = [tf.constant(v) for v in values]
    with tf.autodiff.ForwardAccumulator(xs, list(map(tf.constant, tangents))) as joint:
        results = JOINT[name]([x * x for x in xs])
    for got, result in zip(found, results, strict=True):
        want = joint.jvp(result, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        np.testing.assert_allclose(got, want, **EXACT)


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
