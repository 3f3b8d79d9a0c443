"""The graph optimizer is told which devices a graph is for."""

from __future__ import annotations

import types

import pytest
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import grappler

GPU = "/job:worker/replica:0/task:1/device:GPU:0"


@pytest.fixture
def pretend_gpus(monkeypatch):
    """Makes the driver show GPUs of some compute capabilities."""

    def pretend(*capabilities):
        gpus = [types.SimpleNamespace(capability=c) for c in capabilities]
        listed = tf.config.list_physical_devices
        monkeypatch.setattr(
            tf.config,
            "list_physical_devices",
            lambda kind=None: gpus if kind == "GPU" else listed(kind),
        )
        monkeypatch.setattr(
            tf.config.experimental,
            "get_device_details",
            lambda gpu: (
                {"compute_capability": gpu.capability} if gpu.capability else {}
            ),
        )

    return pretend


@pytest.fixture
def tf32():
    """Restores whether GPUs may compute float32 as TF32."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield tf.config.experimental.enable_tensor_float_32_execution
    tf.config.experimental.enable_tensor_float_32_execution(before)


def _optimized_convolutions(dtype=tf.float32):
    """The layouts of a chain of convolutions after it was optimized for a GPU."""

    @tf.function(input_signature=[tf.TensorSpec([2, 16, 16, 8], dtype)])
    def convolve(x):
        for seed in (1, 2):
            kernel = tf.random.stateless_normal([3, 3, 8, 8], [seed, 2], dtype=dtype)
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return x

    graph = convolve.get_concrete_function().graph
    graph_def = _tf_compat.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    for node in graph_def.node:
        node.device = GPU
    keep = [graph.outputs[0].op.name]
    optimized = grappler.optimize_graph(graph_def, keep, devices={GPU: "GPU"})
    convolutions = [n for n in optimized.node if n.op in ("Conv2D", "_FusedConv2D")]
    assert 2 == len(convolutions)
    return {n.attr["data_format"].s.decode() for n in convolutions}


def test_convolutions_on_new_gpus_keep_the_layout_of_the_graph(pretend_gpus):
    """Their tensor cores take it as it is, in float32 too."""
    pretend_gpus((9, 0))

    assert {"NHWC"} == _optimized_convolutions()
    assert {"NHWC"} == _optimized_convolutions(tf.float16)


def test_without_tf32_the_layout_is_that_of_tensorflow(pretend_gpus, tf32):
    """What is not computed by tensor cores is faster with channels first."""
    pretend_gpus((9, 0))
    tf32(False)

    assert {"NCHW"} == _optimized_convolutions()


def test_on_older_gpus_the_layout_is_that_of_tensorflow(pretend_gpus):
    """The oldest of the visible GPUs decides."""
    pretend_gpus((9, 0), (7, 0))

    assert {"NCHW"} == _optimized_convolutions()


def test_a_remote_gpu_is_taken_for_a_new_one(pretend_gpus):
    """Where this process has none, or the driver does not say what it is."""
    pretend_gpus()
    assert {"NHWC"} == _optimized_convolutions()

    pretend_gpus(None)
    assert {"NHWC"} == _optimized_convolutions()


def test_the_layout_that_the_user_asks_for_is_kept(pretend_gpus, optimizer_settings):
    """Also on a GPU where we would leave it alone."""
    del optimizer_settings  # restores them
    pretend_gpus((9, 0))
    tf.config.optimizer.set_experimental_options({"layout_optimizer": True})

    assert {"NCHW"} == _optimized_convolutions()
