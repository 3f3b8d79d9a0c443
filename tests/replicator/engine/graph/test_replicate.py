"""Nodes of a graph in order, and copies of them: names, devices, seeds and edges."""

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.core.topology import make_topology
from replicator.engine.graph import body, replicate
from replicator.engine.graph.body import Ref

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
GPU = [name.replace("CPU", "GPU") for name in CPU]


def _node(name, op, *inputs, device="", seeds=None):
    node = _tf_compat.NodeDef(name=name, op=op, input=list(inputs), device=device)
    if seeds is not None:
        node.attr["seed"].i, node.attr["seed2"].i = seeds
    return node


def _copies(nodes, *, merged=(), devices=CPU, library=(), on_device=None, resolve=None):
    graph_def = _tf_compat.GraphDef(node=nodes)
    graph_def.library.function.extend(library)
    replicas = replicate.Replicas(
        body.from_graph_def(graph_def),
        make_topology([[device] for device in devices]),
        merged=merged,
        resolve=resolve or (lambda r, name: f"{name}_of_{r}"),
        handle_device=lambda r, name: (on_device or {}).get((r, name)),
    )
    return {node.name: node for node in replicas.nodes()}, replicas


def test_merged_nodes_exist_once_and_everybody_reads_them():
    """The one copy is on replica 0."""
    nodes = [_node("c", "Const"), _node("a", "Neg", "c"), _node("b", "Neg", "a")]

    found, _ = _copies(nodes, merged={"c", "a"})

    assert {f"replica_{r}/b" for r in range(3)} | {"replica_0/c", "replica_0/a"} == set(
        found
    )
    assert all(
        ["replica_0/a:y:0"] == list(found[f"replica_{r}/b"].input) for r in range(3)
    )


def test_a_merged_node_waits_for_every_replica():
    """Its control edges are the union; each replica's own node waits for its own."""
    nodes = [
        _node("read", "NoOp"),
        _node("once", "NoOp"),
        _node("write", "NoOp", "^read", "^once"),
        _node("mine", "NoOp", "^read"),
    ]

    found, _ = _copies(nodes, merged={"once", "write"})

    expected = [f"^replica_{r}/read" for r in range(3)] + ["^replica_0/once"]
    assert expected == list(found["replica_0/write"].input)
    assert ["^replica_2/read"] == list(found["replica_2/mine"].input)


def test_waiting_for_a_collective_is_waiting_for_its_result():
    """Arguments are there before anything runs; results of collectives are nodes."""
    nodes = [
        _node("batch", "Placeholder"),
        _node("marker", "Placeholder"),
        _node("after", "NoOp", "^marker", "^batch"),
    ]

    def resolve(replica_id, name):
        if name == "marker":
            return Ref(node=f"sum_{replica_id}", port="sum:0")
        return f"batch_{replica_id}"

    found, _ = _copies(nodes, resolve=resolve)

    assert ["^sum_1"] == list(found["replica_1/after"].input)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", GPU[1]),
        ("/device:CPU:0", CPU[0]),
        ("/device:CPU:*", CPU[0]),
        ("/device:GPU:0", GPU[1]),
    ],
)
def test_a_device_of_another_type_is_kept_and_of_the_same_type_is_the_replicas(
    asked, expected
):
    """tf.device("CPU:0") in a step holds on GPUs; "GPU:0" means the replica's GPU."""
    found, _ = _copies([_node("a", "NoOp", device=asked)], devices=GPU[:2])

    assert expected == found["replica_1/a"].device


def test_seeds_are_folded_distinct_and_replica_0_keeps_its_own():
    """Unseeded ops stay unseeded: 0, 0 means a fresh seed to TensorFlow."""
    nodes = [
        _node("a", "RandomUniform", seeds=(7, 3)),
        _node("b", "RandomUniform", seeds=(0, 0)),
    ]

    found, _ = _copies(nodes)

    seeds = [found[f"replica_{r}/a"].attr for r in range(3)]
    assert (7, 3) == (seeds[0]["seed"].i, seeds[0]["seed2"].i)
    assert 3 == len({attr["seed2"].i for attr in seeds})
    assert all(0 <= attr["seed2"].i < 2**31 for attr in seeds)
    for r in range(3):
        attr = found[f"replica_{r}/b"].attr
        assert (0, 0) == (attr["seed"].i, attr["seed2"].i)


def test_a_folded_seed_never_becomes_no_seed():
    """Folding to 0, 0 would ask TensorFlow for a random seed."""
    unlucky = -replicate._SEED_STEP & replicate._SEED_LIMIT

    found, _ = _copies([_node("a", "RandomUniform", seeds=(0, unlucky))])

    attr = found["replica_1/a"].attr
    assert (0, 0) != (attr["seed"].i, attr["seed2"].i)


def _function(name, *nodes):
    function = _tf_compat.FunctionDef()
    function.signature.name = name
    function.node_def.extend(nodes)
    return function


def test_functions_that_draw_are_cloned_with_their_callers():
    """A clone per replica, seeds folded inside; functions without randomness stay."""
    call = _node("inner", "PartitionedCall")
    call.attr["f"].func.name = "draws"
    library = [
        _function("draws", _node("r", "RandomUniform", seeds=(7, 3))),
        _function("calls", call),
        _function("plain", _node("n", "NoOp")),
    ]
    nodes = [_node("a", "StatefulPartitionedCall"), _node("b", "PartitionedCall")]
    nodes[0].attr["f"].func.name = "calls"
    nodes[1].attr["f"].func.name = "plain"

    found, replicas = _copies(nodes, library=library)

    functions = {function.signature.name: function for function in replicas.library}
    copies = {f"{n}_replica_{r}" for n in ("draws", "calls") for r in (1, 2)}
    assert {"draws", "calls", "plain"} | copies == set(functions)
    assert "calls" == found["replica_0/a"].attr["f"].func.name
    assert "calls_replica_2" == found["replica_2/a"].attr["f"].func.name
    assert "plain" == found["replica_2/b"].attr["f"].func.name
    inside = functions["calls_replica_2"].node_def[0]
    assert "draws_replica_2" == inside.attr["f"].func.name
    drawn = [
        functions[name].node_def[0].attr["seed2"].i
        for name in ("draws", "draws_replica_1", "draws_replica_2")
    ]
    assert 3 == len(set(drawn))


def _graph_def(build):
    graph = tf.Graph()
    with graph.as_default():
        build()
    return graph.as_graph_def()


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


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (_node("a", "Identity", "b"), r"the graph has a cycle through '[ab]'"),
        (_node("a", "NoSuchOp"), r"op 'NoSuchOp' of node 'a' is not registered"),
    ],
    ids=["cycle", "unknown op"],
)
def test_what_is_no_graph_is_refused(node, message):
    graph_def = _tf_compat.GraphDef(node=[node, _node("b", "Identity", "a")])

    with pytest.raises(ValueError, match=message):
        body.from_graph_def(graph_def)
