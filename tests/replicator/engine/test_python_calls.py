"""Python functions in steps: each replica has its own calls, and their gradients."""

import tensorflow as tf

import replicator
from replicator import PerReplica

INPUTS = PerReplica([tf.constant(1.0), tf.constant(3.0)])


def _square(x):
    return 2.0 * x * x


def _call(x):
    return tf.py_function(_square, [x], tf.float32)


def _gradients(repl, function):
    """d(all_sum(f(w x))) / dw at w = 2, by replica."""
    weight = tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            total = replicator.all_sum(function(weight * x))
        return total, tape.gradient(total, weight)

    repl.run(step, INPUTS)  # the second run uses the tokens again
    totals, gradients = repl.run(step, INPUTS)
    return [float(total) for total in totals], [float(g) for g in gradients]


def test_the_gradient_of_a_python_function_is_that_of_the_own_call(in_graph):
    """A collective between call and gradient makes all calls come first."""
    totals, gradients = _gradients(in_graph, _call)

    assert [80.0, 80.0] == totals  # 2 (2 x)^2, of 1 and 3
    assert [2 * 8.0 * 1.0, 2 * 8.0 * 9.0] == gradients  # 2 replicas, 4 w x^2


def test_so_it_is_in_a_nested_function(in_graph):
    """The function is copied for each replica with the call in it."""
    _, gradients = _gradients(in_graph, tf.function(_call))

    assert [16.0, 144.0] == gradients


def test_a_numpy_function_runs_once_per_replica(in_graph):
    """It has no gradient, and the same function serves all replicas."""
    seen = []

    def note(x):
        seen.append(float(x))
        return x

    def step(x):
        return tf.numpy_function(note, [x], tf.float32)

    assert [1.0, 3.0] == [float(x) for x in in_graph.run(step, INPUTS)]
    assert [1.0, 3.0] == sorted(seen)
