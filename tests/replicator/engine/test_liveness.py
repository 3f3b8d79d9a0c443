"""Owners alone compute updates, in their order; what is recomputed has one mask.

That sharded updates train as others do is seen in ``tests/replicator/optimizer``.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import RecomputationError
from replicator.engine import body as body_lib
from replicator.engine import liveness


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


def test_a_write_comes_after_all_uses_since_the_write_before(node, make_body):
    """Of the same variable: another one does not matter, and one of both counts."""
    body = make_body(
        node("v", "Placeholder"),
        node("w", "Placeholder"),
        node("read", "ReadVariableOp", "v"),
        node("read_w", "ReadVariableOp", "w"),
        node("first", "AssignVariableOp", "v", "read"),
        node("other", "ReadVariableOp", "v", "^first"),
        node("both", "ResourceApplyGradientDescent", "v", "w", "read_w", "^other"),
        node("last", "AssignAddVariableOp", "v", "other", "^both"),
    )

    found = liveness.analyze(
        body,
        invariant={one.name for one in body.nodes},
        primaries=(0, 1),
        handles=("v", "w"),
        owners={"v": 1},
        roots=(),
    )

    assert {
        ("first", "v"): ("read",),
        ("both", "v"): ("first", "other"),
        ("both", "w"): ("read_w",),
        ("last", "v"): ("both",),
    } == found.earlier


def _gathers(body):
    """Of variables of 8 bytes; what computes, varies."""
    sizes = dict.fromkeys([v for v in body.placeholders if v.startswith("v")], 8)
    varying = {one.name for one in body.nodes if one.op == "Mul"}
    depths = body_lib.depths(body, {})
    return liveness.schedule_gathers(body, sizes, depths, varying)


def _layers(node, count):
    nodes = [node("batch", "Placeholder")]
    for i in range(count):
        nodes.append(node(f"v{i}", "Placeholder"))
        nodes.append(node(f"read{i}", "ReadVariableOp", f"v{i}"))
    return nodes


def test_a_later_gather_comes_before_the_write(node, make_body):
    """The value of this step is read, though nothing else orders the two."""
    nodes, last = _layers(node, 5), "batch"
    for i in range(5):
        nodes.append(node(f"forward{i}", "Mul", last, f"read{i}"))
        last = f"forward{i}"
    for i in reversed(range(5)):
        nodes.append(node(f"backward{i}", "Mul", last, f"read{i}"))
        last = f"backward{i}"
        nodes.append(node(f"write{i}", "AssignSubVariableOp", f"v{i}", last))

    found = _gathers(make_body(*nodes))

    by_name = {one.name: one for one in found.body.nodes}
    assert {"read0", "read1", "read2"} == set(found.added.values())
    assert "read1/gather_1" == by_name["backward1"].inputs[1].node
    assert ("read1/gather_1",) == by_name["write1"].controls


def test_no_value_from_before_a_write_is_gathered_after_it(node, make_body):
    nodes, last = _layers(node, 4), "use0"
    nodes.append(node("use0", "Mul", "batch", "read0"))
    nodes.append(node("write0", "AssignVariableOp", "v0", "use0", "^read0"))
    for i in (1, 2, 3):
        nodes.append(node(f"use{i}", "Mul", last, f"read{i}"))
        last = f"use{i}"
    nodes.append(node("late", "Mul", last, "read0"))

    found = _gathers(make_body(*nodes))

    assert {} == found.added
    assert ("use0", "late") == found.gathers[0].uses
