"""TensorFlow's graph optimizer, kernel registry and objects under the collector."""

import contextlib
import gc
import types

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import kernels
from tensorflow.python.grappler import tf_optimizer

import replicator
from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch

GPU = "/job:worker/replica:0/task:1/device:GPU:0"


@pytest.fixture
def pretend_gpus(monkeypatch):
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


def _optimized_convolutions(dtype=tf.float32):
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
    optimized = dispatch.optimize_graph(graph_def, keep, devices={GPU: "GPU"})
    convolutions = [n for n in optimized.node if n.op in ("Conv2D", "_FusedConv2D")]
    assert 2 == len(convolutions)
    return {n.attr["data_format"].s.decode() for n in convolutions}


@pytest.mark.parametrize(
    ("gpus", "dtype", "layout"),
    [
        # As TensorFlow chooses it: bfloat16 from compute capability 8.0 on.
        ([(9, 0)], tf.float16, "NHWC"),
        ([(9, 0)], tf.bfloat16, "NHWC"),
        # One graph runs on all visible GPUs: the oldest decides.
        ([(9, 0), (7, 0)], tf.float16, "NHWC"),
        ([(9, 0), (7, 0)], tf.bfloat16, "NCHW"),
        # It is in another process, or the driver does not say what it is: a new one.
        ([], tf.bfloat16, "NHWC"),
        ([None], tf.bfloat16, "NHWC"),
        ([(7, 0)], tf.float32, "NCHW"),
    ],
)
def test_convolutions_keep_their_layout_where_tensor_cores_take_it(
    pretend_gpus, gpus, dtype, layout
):
    pretend_gpus(*gpus)

    assert {layout} == _optimized_convolutions(dtype)


def test_the_user_decides_whether_layouts_change(pretend_gpus, optimizer_settings):
    del optimizer_settings  # restores them
    pretend_gpus((7, 0))
    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})

    assert {"NHWC"} == _optimized_convolutions()


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_devices_are_described_well_enough(kind, capfd):
    """TensorFlow would warn of one whose costs it cannot estimate."""
    graph_def = _tf_compat.GraphDef()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 4], "x")
        sums = tf.add_n([x @ x, x * x, x + 1.0], "sums")
    graph_def.ParseFromString(graph.as_graph_def().SerializeToString())
    name = f"/job:localhost/replica:0/task:0/device:{kind}:0"
    for node in graph_def.node:
        node.device = name

    dispatch.optimize_graph(graph_def, [sums.op.name], devices={name: kind})

    assert "Invalid device" not in capfd.readouterr().err


def test_on_cpus_a_graph_becomes_what_it_becomes_in_this_process(monkeypatch):
    """Describing the CPU instead of looking for it changes no program."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 8, 8, 4], "x")
        kernel = tf.compat.v1.placeholder(tf.float32, [3, 3, 4, 4], "kernel")
        y = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + tf.constant(2.0) * 3.0)
        y = tf.identity(tf.reduce_sum(y, name="sum"), "y")
    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.ParseFromString(graph.as_graph_def().SerializeToString())
    meta_graph.collection_def["train_op"].node_list.value.append("y")

    given, optimize = [], tf_optimizer.OptimizeGraph

    def optimized(config, *args, **options):
        given.append(config)
        return optimize(config, *args, **options)

    monkeypatch.setattr(tf_optimizer, "OptimizeGraph", optimized)
    found = dispatch.optimize_graph(
        meta_graph.graph_def,
        ["y"],
        devices={"/job:localhost/replica:0/task:0/device:CPU:0": "CPU"},
    )
    expected = optimize(*given, meta_graph, verbose=False)

    assert len(meta_graph.graph_def.node) > len(found.node)
    assert expected == found


def test_a_kernel_is_found_by_device_and_type():
    for op in ("MatMul", "ResourceApplyAdam", "ResourceScatterSub"):
        assert dispatch.has_kernel(op, "CPU", tf.float32)
        assert not dispatch.has_kernel(op, "CPU", tf.string)
    assert not dispatch.has_kernel("NoSuchOp", "CPU", tf.float32)


@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
@pytest.mark.parametrize(
    "op", ["ResourceApplyKerasMomentum", "ResourceApplyAdam", "ResourceScatterSub"]
)
def test_the_types_of_a_kernel_are_those_that_its_device_registers(op, device_type):
    registered = {
        tf.as_dtype(number)
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        for constraint in kernel.constraint
        for number in constraint.allowed_values.list.type
        if kernel.device_type == device_type and constraint.name in ("T", "dtype")
    }
    if not registered:
        pytest.skip(f"this build of TensorFlow has no {device_type} kernels of {op}")

    for dtype in (tf.float16, tf.bfloat16, tf.float32):
        assert (dtype in registered) == dispatch.has_kernel(op, device_type, dtype)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_on", [False, True])
def test_the_collector_is_paused_while_a_step_is_traced(is_on, fails):
    repl = replicator.create("in_graph", num_replicas=2)
    found = []

    def step():
        found.append(gc.isenabled())
        if fails:
            raise RuntimeError("of the step")
        return 1.0

    (gc.enable if is_on else gc.disable)()
    try:
        with contextlib.suppress(RuntimeError):
            repl.run(step)
        assert [False, is_on] == [*found, gc.isenabled()]
    finally:
        gc.enable()


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.full)])
def has_frozen(request):
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if request.param:
        gc.freeze()
    yield request.param
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


def test_a_trace_leaves_no_young_objects_for_a_full_collection(has_frozen):
    """They are old at once; objects that you froze stay frozen."""
    repl = replicator.create("in_graph", num_replicas=2)
    made = []

    repl.run(lambda: made.append([]) or 1.0)

    old = gc.get_objects(generation=2)
    assert has_frozen != any(thing is made[0] for thing in old)
    assert has_frozen == (gc.get_freeze_count() > 0)
