"""Bodies: graphs in the form in which functions keep them."""

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.engine.graph import body


def _graph_def(build):
    graph = tf.Graph()
    with graph.as_default():
        build()
    return graph.as_graph_def()


def _node(name, op, *inputs):
    return _tf_compat.NodeDef(name=name, op=op, input=list(inputs))


def test_nodes_come_after_what_they_use_in_any_order_of_the_graph():
    def build():
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        y = tf.add(x, x, name="y")
        with tf.control_dependencies([y]):
            tf.identity(tf.constant(1.0, name="c"), name="z")

    graph_def = _graph_def(build)
    backwards = _tf_compat.GraphDef(node=list(graph_def.node)[::-1])

    found = body.from_graph_def(backwards)

    names = [node.name for node in found.nodes]
    assert frozenset({"x"}) == found.placeholders
    assert {"y", "c", "z"} == set(names)
    assert names.index("y") < names.index("z")
    assert names.index("c") < names.index("z")


@pytest.mark.parametrize(
    ("build", "name", "port"),
    [
        (lambda: tf.split(tf.zeros([6]), 3, name="s"), "s:2", "output:2"),
        (lambda: tf.unstack(tf.zeros([3]), name="u"), "u:1", "output:1"),
        (
            lambda: tf.identity_n([tf.zeros([1]), tf.zeros([2], tf.int32)], name="i"),
            "i:1",
            "output:1",
        ),
        (
            lambda: tf.raw_ops.FusedBatchNormV3(
                x=tf.zeros([1, 2, 2, 3]),
                scale=tf.zeros([3]),
                offset=tf.zeros([3]),
                mean=tf.zeros([3]),
                variance=tf.zeros([3]),
                name="b",
            ),
            "b:4",
            "reserve_space_2:0",
        ),
        (lambda: tf.unique(tf.constant([1, 1]), name="q"), "q:1", "idx:0"),
        (lambda: tf.constant(1, name="k"), "k", "output:0"),
    ],
)
def test_ports_are_named_as_functions_name_them(build, name, port):
    """Lists count within their argument; several arguments each start at zero."""
    names = body.TensorNames(_graph_def(build))

    assert body.Ref(node=name.partition(":")[0], port=port) == names.ref(name)


def test_ports_of_function_calls_by_name_follow_their_signature():
    graph_def = _tf_compat.GraphDef()
    function = graph_def.library.function.add()
    function.signature.name = "pair"
    function.signature.output_arg.add(name="first").type = 1
    function.signature.output_arg.add(name="second").type = 1
    graph_def.node.append(_node("call", "pair"))

    assert ("first:0", "second:0") == body.TensorNames(graph_def).ports("call")


def test_a_cycle_is_refused():
    graph_def = _tf_compat.GraphDef(
        node=[_node("a", "Identity", "b"), _node("b", "Identity", "a")]
    )

    with pytest.raises(ValueError, match=r"the graph has a cycle through '[ab]'"):
        body.from_graph_def(graph_def)


def test_an_unknown_op_is_named():
    graph_def = _tf_compat.GraphDef(
        node=[_node("a", "NoSuchOp"), _node("b", "Identity", "a")]
    )

    with pytest.raises(
        ValueError, match=r"op 'NoSuchOp' of node 'a' is not registered"
    ):
        body.from_graph_def(graph_def)
