"""What the user sets by tf.config.optimizer holds for the engine's graphs too."""

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import replicator
from replicator._tf import dispatch
from replicator.core.topology import make_topology
from replicator.engine import optimize
from replicator.engine.trace import trace

SCALAR = tf.TensorSpec([], tf.float32)
LOCAL = "/job:localhost/replica:0/task:0/device:"
TWO_CPUS = make_topology([[f"{LOCAL}CPU:0"]] * 2)
TWO_GPUS = make_topology([[f"{LOCAL}GPU:0"], [f"{LOCAL}GPU:1"]])
HALF = tf.float16.as_datatype_enum


pytestmark = pytest.mark.usefixtures("optimizer_settings")


def _folded(x):
    return x + tf.multiply(tf.constant(2.0), tf.constant(3.0))


def _optimized(step, topology=TWO_CPUS):
    traced = trace(step, [SCALAR], 2)
    return traced, optimize.optimize(traced, topology)


@pytest.mark.parametrize(
    ("options", "is_folded"),
    [
        ({}, True),
        ({"constant_folding": False}, False),
        ({"min_graph_nodes": 10_000}, False),  # by default the smallest is optimized
        ({"disable_meta_optimizer": True}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("topology", [TWO_CPUS, TWO_GPUS], ids=["CPUs", "GPUs"])
@pytest.mark.covering(strength=1)
def test_a_rule_that_the_user_turns_off_does_not_run(options, is_folded, topology):
    tf.config.optimizer.set_experimental_options(options)

    traced, graph_def = _optimized(_folded, topology)

    assert is_folded == ("Mul" not in {node.op for node in graph_def.node})
    if "disable_meta_optimizer" in options:  # only cut at its collectives
        assert optimize.cut(traced) == graph_def


def test_a_change_holds_from_the_next_run_on(in_graph, per_replica):
    """A step that ran before is built again, once per setting; results are the same."""
    xs = per_replica([1.0, 2.0])
    found = []
    for is_folded in (True, False, True):
        tf.config.optimizer.set_experimental_options({"constant_folding": is_folded})
        found.append([float(v) for v in in_graph.run(_folded, xs)])
    tf.config.optimizer.set_jit("autoclustering")
    found.append([float(v) for v in in_graph.run(_folded, xs)])

    assert [[7.0, 8.0]] * 4 == found
    assert 3 == in_graph.explain().count("2 replicas, ")


def test_16_bits_that_the_user_asks_for_end_at_collectives():
    weight = tf.Variable(tf.ones([8, 8]))

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.fill([8, 8], x)
            for _ in range(3):
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_mean(y)
        return replicator.all_sum(tape.gradient(loss, weight)), loss

    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    traced, graph_def = _optimized(step, TWO_GPUS)

    nodes = {node.name: node for node in graph_def.node}
    halves = [n.name for n in graph_def.node if n.attr["T"].type == HALF]
    assert halves  # it did run
    (collective,) = traced.collectives
    kept = [*collective.operands, *(n.partition(":")[0] for n in traced.output_names)]
    assert [] == [name for name in kept if HALF == nodes[name].attr["T"].type]


@pytest.mark.parametrize(
    ("is_on", "level"),
    [(True, "ON_1"), (False, "OFF"), (None, "DEFAULT")],
)
def test_the_linked_function_is_compiled_where_the_user_wants_and_not_optimized(
    in_graph, is_on, level
):
    context = dispatch.eager_context.context()
    if is_on is not None:
        tf.config.optimizer.set_jit(is_on)
    before = context.function_call_options
    with dispatch.recorded() as started:
        in_graph.run(lambda: tf.constant(1.0))

    assert started
    for one in started:
        given = dict(zip(one._attrs[True][::2], one._attrs[True][1::2], strict=True))
        options = config_pb2.ConfigProto.FromString(given["config_proto"]).graph_options
        assert level == config_pb2.OptimizerOptions.GlobalJitLevel.Name(
            options.optimizer_options.global_jit_level
        )
        assert options.rewrite_options.disable_meta_optimizer
    assert before is context.function_call_options
