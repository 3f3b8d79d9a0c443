"""The optimized graph: rules of its devices and of the user, and once only."""

import json
import os
import pathlib
import subprocess
import sys

import programs
import pytest
import tensorflow as tf
from graphs import linked, of_replica, on_devices
from tensorflow.core.protobuf import config_pb2

import replicator
from replicator._tf import dispatch

SCALAR = tf.TensorSpec([], tf.float32)
LOCAL = "/job:localhost/replica:0/task:0/device:"
TWO_CPUS = [f"{LOCAL}CPU:0"] * 2
TWO_GPUS = [f"{LOCAL}GPU:0", f"{LOCAL}GPU:1"]
FLOAT, HALF = tf.float32.as_datatype_enum, tf.float16.as_datatype_enum


pytestmark = pytest.mark.usefixtures("optimizer_settings")


def _folded(x):
    return x + tf.multiply(tf.constant(2.0), tf.constant(3.0))


def _linked(step, devices=TWO_CPUS, *specs):
    return linked(on_devices(devices), step, SCALAR, *specs)


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
@pytest.mark.parametrize("devices", [TWO_CPUS, TWO_GPUS], ids=["CPUs", "GPUs"])
@pytest.mark.covering(strength=1)
def test_a_rule_that_the_user_turns_off_does_not_run(options, is_folded, devices):
    tf.config.optimizer.set_experimental_options(options)

    ops = sorted(node.op for node in of_replica(_linked(_folded, devices)))

    assert is_folded == ("Mul" not in ops)
    if "disable_meta_optimizer" in options:  # as it was traced
        assert ["AddV2", "Const", "Const", "Identity", "Mul"] == ops


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", "GPU:1"),
        ("/device:CPU:0", "CPU:0"),
        ("/device:CPU:*", "CPU:0"),
        ("/device:GPU:0", "GPU:1"),
    ],
)
def test_a_device_of_another_type_is_kept_and_of_the_same_type_is_the_replicas(
    asked, expected
):
    """tf.device("CPU:0") in a step holds on GPUs; "GPU:0" means the replica's GPU."""

    def step(x):
        with tf.device(asked):
            return tf.tanh(x)

    nodes = of_replica(_linked(step, TWO_GPUS), 1)

    assert [f"{LOCAL}{expected}"] == [n.device for n in nodes if n.op == "Tanh"]


def test_a_device_that_a_function_names_in_full_is_kept():
    """It was taken for that of the replica, whose stand-in has the same name."""

    @tf.function(experimental_attributes={"_noinline": True})
    def inner(x):
        with tf.device(f"{LOCAL}CPU:0"):
            return tf.tanh(x)

    nodes = of_replica(_linked(inner))

    assert [f"{LOCAL}CPU:0"] == [n.device for n in nodes if n.op == "Tanh"]


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
    def step(x, weight):
        with tf.GradientTape() as tape:
            tape.watch(weight)
            y = tf.fill([8, 8], x)
            for _ in range(3):
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_mean(y)
        return replicator.all_sum(tape.gradient(loss, weight)), loss

    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    function = _linked(step, TWO_GPUS, tf.TensorSpec([8, 8]))

    types = {n.op: n.attr["T"].type for n in function.node_def if "T" in n.attr}
    assert HALF in [n.attr["T"].type for n in function.node_def]  # it did run
    assert FLOAT == types["CollectiveReduceV2"]
    assert {FLOAT} == {output.type for output in function.signature.output_arg}


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


def test_steps_that_call_one_function_with_other_constants_stay_apart(
    in_graph, per_replica
):
    """The optimizer specializes a function per step under one name; both are kept."""
    # Wherever they are called: by name, in a branch, or in one of several cases.

    @tf.function(experimental_attributes={"_noinline": True})
    def scaled(x, factor):
        return x * factor + tf.random.uniform([], minval=0.0, maxval=1e-9)

    def make(factor):
        def by_factor(x):
            return scaled(x, tf.constant(factor))

        def step(x):
            in_branch = tf.cond(x > 5.0, lambda: by_factor(x), lambda: x)
            index = tf.cast(x > 5.0, tf.int32)
            in_case = tf.switch_case(index, [lambda: x, lambda: by_factor(x)])
            return by_factor(x), in_branch, in_case

        return step

    xs = per_replica([1.0, 10.0])
    for factor in (2.0, 3.0):
        found = in_graph.run(make(factor), xs)
        wanted = [[factor, 10 * factor], *2 * [[1.0, 10 * factor]]]
        assert [pytest.approx(want) for want in wanted] == [
            [float(value) for value in of] for of in found
        ]


def test_loops_and_branches_are_one_node_each_until_they_run():
    """One node is renamed like any other; a lowered loop would be a cycle."""

    def step(x):
        turns = (tf.constant(0), x)
        y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), turns)[1]
        return tf.cond(replicator.all_sum(y) > 0, lambda: y, lambda: x)

    nodes = _linked(step).node_def

    found = {n.op: n.attr["_lower_using_switch_merge"].b for n in nodes}
    assert found["StatelessWhile"]
    assert found["StatelessIf"]
    assert {"Enter", "Switch", "Merge"}.isdisjoint(found)


@pytest.mark.processes
def test_a_step_is_fused_for_the_cpu_of_a_host_only_where_it_runs_there():
    """In the graph and in the loop: GPUs refuse the fused batch norm in training."""
    # With the rules of oneDNN, which a CPU with AVX512-VNNI or AMX turns on by itself.
    script = pathlib.Path(programs.__file__)
    paths = [str(script.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    rules = {"TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, str(script), "onednn_rules"],
        capture_output=True,
        check=False,
        env=os.environ | rules,
        text=True,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout)
    if "_FusedBatchNormEx" not in found["without_stamps"]:
        pytest.skip("this build of TensorFlow has no rules of oneDNN")

    fused, apart = ["_FusedBatchNormEx"] * 2, ["Relu"] * 2
    assert (
        dict.fromkeys(["cpu", "without_stamps"], fused)
        | dict.fromkeys(["gpu", "remote_gpu", "gpu_and_cpu"], apart)
        == found
    )
