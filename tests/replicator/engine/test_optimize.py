"""The optimized graph: same names at the seams, same results, functions of its own."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

import replicator
from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.core.topology import make_topology
from replicator.engine.analysis import analyze as analysis
from replicator.engine.graph import body, optimize
from replicator.engine.graph.trace import trace

TWO_CPUS = make_topology([["/job:localhost/replica:0/task:0/device:CPU:0"]] * 2)
SCALAR = tf.TensorSpec([], tf.float32)


def _traced():
    total = tf.Variable(0.0, trainable=False)

    def step(x):
        squares = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, y * x), (0, tf.constant(1.0))
        )[1]
        reduced = replicator.all_sum(squares)
        total.assign_add(reduced)
        return tf.cond(reduced > 0, lambda: reduced + x, lambda: x), x

    traced = trace(step, [SCALAR], 2)
    return traced, total  # a graph does not keep its variables alive


def test_what_the_linker_refers_to_keeps_its_name():
    """Outputs, operands, markers, arguments and control outputs are all there."""
    traced, _total = _traced()

    names = {node.name for node in optimize.optimize(traced, TWO_CPUS).node}

    (collective,) = traced.collectives
    needed = {name.partition(":")[0] for name in traced.output_names}
    needed |= {*collective.operands, *collective.markers, *traced.variables}
    needed |= {*traced.argument_names, *traced.control_output_names}
    assert set() == needed - names


def test_results_of_collectives_become_inputs_of_their_static_shape():
    def step(x):
        return replicator.all_sum(x), replicator.all_gather(x)

    traced = trace(step, [tf.TensorSpec([None, 3], tf.float64)], 4)
    nodes = {node.name: node for node in optimize.cut(traced).node}

    shapes = []
    for collective in traced.collectives:
        node = nodes[collective.markers[0]]
        shapes.append(tf.TensorShape(node.attr["shape"].shape).as_list())
        assert "Placeholder" == node.op
        assert [] == list(node.input)
        assert tf.float64.as_datatype_enum == node.attr["dtype"].type
    assert [[None, 3], [4, None, 3]] == shapes


def test_loops_and_branches_stay_one_node_each():
    """One node is renamed like any other; a lowered loop would be a cycle."""
    traced, _total = _traced()

    graph_def = optimize.optimize(traced, TWO_CPUS)

    control_flow = [n for n in graph_def.node if n.op in optimize._CONTROL_FLOW_OPS]
    assert {"StatelessWhile", "StatelessIf"} >= {n.op for n in control_flow}
    assert 1 <= len(control_flow)
    assert all(n.attr[optimize._LOWERING].b for n in control_flow)
    assert {"Enter", "Switch", "Merge"}.isdisjoint(n.op for n in graph_def.node)


def test_a_step_without_results_is_left_as_it_is():
    """Nothing must be kept, so nothing could be optimized."""
    traced = trace(lambda: None, [], 2)

    assert optimize.cut(traced) == optimize.optimize(traced, TWO_CPUS)


def _train(repl, monkeypatch=None):
    if monkeypatch is not None:
        monkeypatch.setattr(analysis, "optimize", lambda step, *_: optimize.cut(step))
    with repl.context():
        weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.matmul(x, weight) + 1.0) / 3.0
            loss = tf.reduce_mean(y * y + tf.zeros_like(y) * y)
        gradient = replicator.all_mean(tape.gradient(loss, weight))
        weight.assign_sub(0.01 * gradient)
        return loss

    xs = replicator.PerReplica([tf.eye(2), 2 * tf.eye(2)])
    losses = [[float(v) for v in repl.run(step, xs)] for _ in range(3)]
    return losses, weight.numpy().tolist()


def test_the_optimized_step_computes_what_the_traced_one_does(in_graph, monkeypatch):
    """Losses and weights are those of the graph that was only cut."""
    optimized = _train(in_graph)
    with monkeypatch.context() as patch:
        plain = _train(
            replicator.InGraphReplicator(num_replicas=2, devices=in_graph.devices),
            patch,
        )

    assert pytest.approx(plain[0][-1], rel=1e-6) == optimized[0][-1]
    assert pytest.approx(plain[1][0], rel=1e-6) == optimized[1][0]


def test_the_linked_function_is_not_optimized_again():
    """A program starts with the graph optimizer off; other functions as before."""
    context = _tf_dispatch.eager_context.context()
    before = context.function_call_options
    repl = replicator.create("in_graph", num_replicas=2)
    step = tf.autograph.experimental.do_not_convert(lambda: tf.constant(1.0))
    repl.run(step)
    ((_, built),) = repl._programs.items()

    attrs = built._functions[1, False]._attrs[True]
    given = dict(zip(attrs[::2], attrs[1::2], strict=True))
    config = _tf_dispatch.config_pb2.ConfigProto.FromString(given["config_proto"])

    assert config.graph_options.rewrite_options.disable_meta_optimizer
    assert before is context.function_call_options


def test_steps_that_call_one_function_with_other_constants_stay_apart(
    in_graph, per_replica
):
    """The optimizer specializes a function per step under one name; both are kept."""

    @tf.function(experimental_attributes={"_noinline": True})
    def scaled(x, factor):
        return x * factor + tf.random.uniform([], minval=0.0, maxval=1e-9)

    def double(x):
        return scaled(x, tf.constant(2.0))

    def triple(x):
        return scaled(x, tf.constant(3.0))

    xs = per_replica([1.0, 10.0])

    got = [[float(v) for v in in_graph.run(step, xs)] for step in (double, triple)]

    assert [pytest.approx([2, 20]), pytest.approx([3, 30])] == got


def test_functions_are_renamed_wherever_they_are_called():
    graph_def = _tf_compat.GraphDef()
    for name in ("f", "g"):
        function = graph_def.library.function.add()
        function.signature.name = name
    call = graph_def.library.function[0].node_def.add(name="inner", op="g")
    node = graph_def.node.add(name="case", op="Case")
    node.attr["branches"].list.func.add(name="f")
    node.attr["branches"].list.func.add(name="unknown")
    node.attr["f"].func.name = "g"

    optimize.own_functions(graph_def, "me")

    names = [function.signature.name for function in graph_def.library.function]
    assert ["f_of_me", "g_of_me"] == names
    assert "g_of_me" == call.op
    assert {"f_of_me", "unknown", "g_of_me"} == {
        called.name for called in body.called_functions(node)
    }


@pytest.fixture(scope="module")
def onednn_rules():
    """What a step becomes on several devices, on a host with the rules of oneDNN."""
    script = pathlib.Path(__file__).with_name("onednn_rules.py")
    paths = [str(script.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # What a CPU with AVX512-VNNI or AMX turns on by itself, and this one maybe not.
    rules = {"TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        check=False,
        env=os.environ | rules,
        text=True,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout)
    if "_FusedBatchNormEx" not in found["without_stamps"]:
        pytest.skip("this build of TensorFlow has no rules of oneDNN")
    return found


@pytest.mark.processes
@pytest.mark.parametrize("devices", ["gpu", "remote_gpu", "gpu_and_cpu"])
def test_a_step_on_gpus_is_not_fused_for_the_cpu_of_its_host(onednn_rules, devices):
    """In the graph and in the loop: GPUs refuse the fused batch norm in training."""
    assert ["Relu", "Relu"] == onednn_rules[devices]


@pytest.mark.processes
def test_a_step_on_cpus_is_fused_for_them(onednn_rules):
    """As it was without stamps; the rules of the host are those of its replicas."""
    assert ["_FusedBatchNormEx"] * 2 == onednn_rules["cpu"]
    assert onednn_rules["without_stamps"] == onednn_rules["cpu"]


TWO_GPUS = make_topology(
    [[f"/job:localhost/replica:0/task:0/device:GPU:{index}"] for index in range(2)]
)


@pytest.mark.parametrize("topology", [TWO_CPUS, TWO_GPUS], ids=["cpu", "gpu"])
def test_an_optimized_graph_asks_for_no_other_devices_than_the_step(topology):
    """Otherwise all replicas would run on the devices of the first."""

    def step(x):
        with tf.device("CPU:0"):
            on_host = tf.strings.length(tf.strings.as_string(x))
        return tf.cast(on_host, tf.float32) + tf.nn.relu(replicator.all_sum(x))

    traced = trace(step, [SCALAR], 2)

    found = {node.device for node in optimize.optimize(traced, topology).node}

    assert {"", "/device:CPU:0"} == found
