"""Only the owner of a variable computes its update; recomputed numbers are the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator._tf import compat as _tf_compat
from replicator.engine.graph import liveness
from replicator.errors import RecomputationError

ELSEWHERE = liveness.ELSEWHERE


def analyze(
    body, *, handles=("v",), owners=None, roots=(), primaries=(0, 1), varying=()
):
    """Analyzes a body in which all nodes but the varying ones are invariant."""
    names = {node.name for node in body.nodes}
    return liveness.analyze(
        body,
        invariant=names - set(varying),
        primaries=primaries,
        handles=handles,
        owners={"v": 1} if owners is None else owners,
        roots=roots,
    )


@pytest.fixture
def update(node):
    return [
        node("v", "Placeholder"),
        node("sum", "Placeholder"),
        node("rate", "Const"),
        node("scaled", "Mul", "sum", "rate"),
        node("write", "AssignSubVariableOp", "v", "scaled"),
    ]


def test_an_owned_variable_is_updated_by_its_owner_only(make_body, update):
    """And so is all that leads to the update, up to the results of collectives."""
    found = analyze(make_body(*update))

    assert {"write": 1} == found.writers
    assert {"write": ("v",)} == found.written
    assert dict.fromkeys(("rate", "scaled", "write"), (1,)) == found.emitted
    assert (1,) == found.results["sum"]


def test_what_is_needed_for_other_reasons_is_computed_everywhere(make_body, update):
    """The scaled gradient is an output as well; the write is still the owner's."""
    found = analyze(make_body(*update), roots=["scaled"])

    assert (1,) == found.emitted["write"]
    assert (0, 1) == found.emitted["scaled"] == found.emitted["rate"]
    assert (0, 1) == found.results["sum"]


def test_nobody_emits_what_nobody_needs(make_body, node):
    """A node without effect that leads nowhere."""
    found = analyze(make_body(node("c", "Const"), node("d", "Neg", "c")), roots=["c"])

    assert {"c": (0, 1), "d": ()} == found.emitted


def test_two_owners_share_what_both_updates_need(make_body, node, update):
    """The learning rate is wanted by both, each gradient by one."""
    more = [
        node("w", "Placeholder"),
        node("sum_w", "Placeholder"),
        node("scaled_w", "Mul", "sum_w", "rate"),
        node("write_w", "AssignSubVariableOp", "w", "scaled_w"),
    ]
    body = make_body(*update, *more)

    found = analyze(body, handles=("v", "w"), owners={"v": 1, "w": 0})

    assert {"write": 1, "write_w": 0} == found.writers
    assert (0, 1) == found.emitted["rate"]
    assert ((1,), (0,)) == (found.results["sum"], found.results["sum_w"])


def test_control_edges_carry_the_need(make_body, node, update):
    write = node("write", "AssignSubVariableOp", "v", "scaled", "^check")
    body = make_body(*update[:-1], node("check", "NoOp"), write)

    assert (1,) == analyze(body).emitted["check"]


def test_the_owner_may_be_in_another_program(make_body, update):
    """It stands behind all replicas of all other programs, and sorts first."""
    found = analyze(
        make_body(*update), owners={"v": ELSEWHERE}, primaries=(0, ELSEWHERE),
        roots=["rate"],
    )  # fmt: skip

    assert {"write": ELSEWHERE} == found.writers
    assert (ELSEWHERE,) == found.emitted["scaled"] == found.results["sum"]
    assert (ELSEWHERE, 0) == found.emitted["rate"]


def test_a_handle_is_recognized_behind_identities(make_body, node, update):
    body = make_body(
        *update[:-1],
        node("same", "Identity", "v"),
        node("again", "Identity", "same"),
        node("write", "AssignVariableOp", "again", "scaled"),
    )

    found = analyze(body)

    assert {"write": ("v",)} == found.written
    assert (1,) == found.emitted["same"]


def test_a_write_of_several_variables_belongs_to_the_first_owner(make_body, node):
    """A fused update has the weight and its slots, of which one may be owned."""
    nodes = [node(name, "Placeholder") for name in ("v", "slot", "free", "g")]
    body = make_body(
        *nodes, node("write", "ResourceApplyMomentum", "free", "slot", "v", "g")
    )

    found = analyze(body, handles=("v", "slot", "free"), owners={"v": 0, "slot": 1})

    assert {"write": 1} == found.writers
    assert {"write": ("free", "slot", "v")} == found.written


@pytest.mark.parametrize(
    ("op", "writers"), [("AssignVariableOp", {"call": 1}), ("ReadVariableOp", {})]
)
def test_a_call_writes_what_its_function_writes(make_body, node, op, writers):
    """The variable is the second argument."""
    function = _tf_compat.FunctionDef()
    function.signature.name = "inner"
    function.signature.input_arg.add(name="x", type=tf.float32.as_datatype_enum)
    function.signature.input_arg.add(name="h", type=tf.resource.as_datatype_enum)
    inputs = ["h", "x"] if writers else ["h"]
    function.node_def.append(node("a", op, *inputs))
    call = node("call", "StatefulPartitionedCall", "x", "v")
    call.attr["f"].func.name = "inner"
    body = make_body(
        node("v", "Placeholder"), node("x", "Placeholder"), call, library=(function,)
    )

    assert writers == analyze(body).writers


def test_a_write_comes_after_all_uses_since_the_write_before(make_body, node):
    """The first write is among what the second one waits for, the first read not."""
    body = make_body(
        node("v", "Placeholder"),
        node("read", "ReadVariableOp", "v"),
        node("first", "AssignVariableOp", "v", "read"),
        node("other", "ReadVariableOp", "v", "^first"),
        node("second", "AssignAddVariableOp", "v", "other"),
    )

    found = analyze(body)

    expected = {("first", "v"): ("read",), ("second", "v"): ("first", "other")}
    assert expected == found.earlier


def test_uses_are_counted_by_variable(make_body, node):
    """A read of another variable does not matter, one of both counts for both."""
    body = make_body(
        node("v", "Placeholder"),
        node("w", "Placeholder"),
        node("read_w", "ReadVariableOp", "w"),
        node("both", "ResourceApplyGradientDescent", "v", "w", "read_w"),
        node("write", "AssignVariableOp", "v", "read_w", "^both"),
    )

    found = analyze(body, handles=("v", "w"), owners={"v": 0})

    assert () == found.earlier["both", "v"]
    assert ("read_w",) == found.earlier["both", "w"]
    assert ("both",) == found.earlier["write", "v"]


def _pass_both_ways(function, *more):
    """A step: where the function keeps a value, and where its gradient does."""

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
    """The seed of a stateless function is passed to the function."""
    repl = replicator.create("in_graph", num_replicas=2)

    def mask(x, seed):
        return x * tf.cast(tf.random.stateless_uniform([64], seed) < 0.5, x.dtype)

    seed = tf.constant([1.0, 2.0])
    function = tf.recompute_grad(lambda x, s: mask(x, tf.cast(s, tf.int32)))
    forward, backward = repl.run(_pass_both_ways(function, seed))

    np.testing.assert_array_equal(forward[0], backward[0])
    assert 0 < np.count_nonzero(forward[0]) < 64
