"""Owners alone compute updates, in their order; what is recomputed has one mask.

That sharded updates train as others do is seen in ``tests/replicator/optimizer``.
"""

import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import before, linked

import replicator
from replicator import RecomputationError


def _pass_both_ways(function, *more):
    def step():
        x = tf.ones([64])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, *more)
        return y > 0, tape.gradient(y, x) > 0

    return step


def _stream():
    return lambda x: tf.nn.dropout(x, 0.5)


def _keras_layer():
    layer = keras.layers.Dropout(0.5)
    return lambda x: layer(x, training=True)


@pytest.mark.parametrize("make", [_stream, _keras_layer])
@pytest.mark.parametrize("wrap", [tf.recompute_grad, keras.remat])
def test_a_dropout_that_is_recomputed_is_refused(wrap, make):
    """Its masks would agree in half of the places; the message names the line."""
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        function = make()

    with pytest.raises(
        RecomputationError, match=r"numbers at .*test_liveness\.py:\d+: .*stateless_"
    ):
        repl.run(_pass_both_ways(wrap(function)))


def test_what_the_message_advises_has_one_mask():
    repl = replicator.create("in_graph", num_replicas=2)

    def mask(x, seed):
        return x * tf.cast(tf.random.stateless_uniform([64], seed) < 0.5, x.dtype)

    seed = tf.constant([1.0, 2.0])
    function = tf.recompute_grad(lambda x, s: mask(x, tf.cast(s, tf.int32)))
    forward, backward = repl.run(_pass_both_ways(function, seed))

    np.testing.assert_array_equal(forward[0], backward[0])
    assert 0 < np.count_nonzero(forward[0]) < 64


def test_what_only_an_owner_needs_is_sent_to_it_alone(separate):
    repl = separate(2)
    with repl.context():
        weights = [tf.Variable(tf.ones([8])) for _ in range(2)]
        optimizer = repl.wrap_optimizer(
            keras.optimizers.Lion(0.1), sharded_update="state"
        )

    def step(x):
        optimizer.apply_gradients([(x * weight, weight) for weight in weights])

    repl.run(step, replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)]))

    assert "; 2 for their owners alone" in repl.explain()


def _unordered(function):
    """Uses of a copy of a variable that may come before and after a write of it."""
    ancestors = before(types.SimpleNamespace(node=function.node_def))
    uses = {}
    for node in function.node_def:
        for text in node.input:
            if text.startswith("capture_"):
                uses.setdefault(text, []).append(node)
    return [
        (write.name, use.name)
        for of_copy in uses.values()
        for write in of_copy
        for use in of_copy
        if write.op != "ReadVariableOp" and write is not use
        if write.name not in ancestors(use.name)
        if use.name not in ancestors(write.name)
    ]


def _sharded(repl, count, level):
    with repl.context():
        weights = [tf.Variable([1.0 + k, 2.0]) for k in range(count)]
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5), sharded_update=level)
        optimizer.build(weights)
    return weights, optimizer


def test_a_write_comes_after_all_uses_since_the_write_before(separate):
    """Of the same variable: it waits for no use of another one."""
    repl = separate(2)
    (v, w), _ = _sharded(repl, 2, "state")

    def step(x):
        read, read_w = v.read_value(), w.read_value()
        v.assign(2.0 * read)
        other = v.read_value()
        w.assign_sub(read_w + other)
        v.assign_add(other)
        return x * read, x * read_w, x * other

    function = linked(repl, step, tf.TensorSpec([]))

    assert [] == _unordered(function)
    nodes = {node.name: node for node in function.node_def}
    reads = {n.name for n in nodes.values() if n.op == "ReadVariableOp"}
    copied = [n for n in nodes.values() if "/refresh_" in n.name]
    assert 3 == len(copied)
    for write in copied:  # one read of the same copy on its own replica
        waits = {text[1:] for text in write.input if text.startswith("^")} & reads
        assert [write.input[0]] == [nodes[name].input[0] for name in waits]
    xs = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
    found = [[value.numpy().tolist() for value in of] for of in repl.run(step, xs)]
    assert [[1.0, 2.0], [2.0, 4.0]] == found[0]
    assert [[2.0, 2.0], [4.0, 4.0]] == found[1]
    assert [[2.0, 4.0], [4.0, 8.0]] == found[2]
    assert [[4.0, 8.0], [-2.0, -4.0]] == [v.numpy().tolist(), w.numpy().tolist()]


def _num_gathers(repl):
    return int(re.search(r"in (\d+) gathers ", repl.explain())[1])


def test_a_later_gather_comes_before_the_write(separate):
    """The value of this step is read, though nothing else orders the two."""
    repl = separate(2)
    weights, optimizer = _sharded(repl, 5, "parameters")

    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = x * weight
        grads = tape.gradient(x, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return x

    function = linked(repl, step, tf.TensorSpec([2]))

    assert 5 + 3 == _num_gathers(repl)  # the last two are there
    assert [] == _unordered(function)
    again = {n.name for n in function.node_def if n.name.endswith("/gather_1")}
    ancestors = before(types.SimpleNamespace(node=function.node_def))
    writes = [n for n in function.node_def if n.op == "ResourceApplyGradientDescent"]
    assert 5 == len(writes)
    assert again == set.union(*(again & ancestors(write.name) for write in writes))


def test_no_value_from_before_a_write_is_gathered_after_it(separate):
    repl = separate(2)
    weights, _ = _sharded(repl, 4, "parameters")

    def step(x):
        first = weights[0].read_value()
        x = x * first
        weights[0].assign(replicator.all_mean(x))
        for weight in weights[1:]:
            x = x * weight
        return x * first

    function = linked(repl, step, tf.TensorSpec([2]))
    found = repl.run(step, replicator.PerReplica([tf.ones([2]), 2.0 * tf.ones([2])]))

    assert 4 == _num_gathers(repl)
    assert [] == _unordered(function)
    expected = [[2.0 * 3.0 * 4.0, 2.0**5], [2.0 * 2.0 * 3.0 * 4.0, 2.0**6]]
    assert expected == [value.numpy().tolist() for value in found]
    assert [1.5, 3.0] == weights[0].numpy().tolist()
