"""The optimized graph: rules of its devices, functions of its own, and once only."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

import replicator
from replicator.core.topology import make_topology
from replicator.engine import optimize
from replicator.engine.trace import trace


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

    traced = trace(step, [tf.TensorSpec([], tf.float32)], 2)
    topology = make_topology([["/job:localhost/replica:0/task:0/device:CPU:0"]] * 2)
    nodes = optimize.optimize(traced, topology).node

    found = {n.op: n.attr["_lower_using_switch_merge"].b for n in nodes}
    assert found["StatelessWhile"]
    assert found["StatelessIf"]
    assert {"Enter", "Switch", "Merge"}.isdisjoint(found)


@pytest.mark.processes
def test_a_step_is_fused_for_the_cpu_of_a_host_only_where_it_runs_there():
    """In the graph and in the loop: GPUs refuse the fused batch norm in training."""
    # With the rules of oneDNN, which a CPU with AVX512-VNNI or AMX turns on by itself.
    script = pathlib.Path(__file__).with_name("onednn_rules.py")
    paths = [str(script.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
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

    fused, apart = ["_FusedBatchNormEx"] * 2, ["Relu"] * 2
    assert (
        dict.fromkeys(["cpu", "without_stamps"], fused)
        | dict.fromkeys(["gpu", "remote_gpu", "gpu_and_cpu"], apart)
        == found
    )
