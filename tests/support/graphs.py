"""What a graph has: ops that run, their products, bytes that move, collectives.

Also of steps for devices that this machine does not have: they are traced, planned and
linked like any other, and cannot run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import function_def_to_graph

import replicator

_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
# What runs on the host, or passes on what is there.
_WITHOUT_LAUNCH = frozenset(
    {
        *_SENDS,
        *_RECEIVES,
        "_Arg",
        "_DeviceArg",
        "_DeviceRetval",
        "_HostRetval",
        "_Retval",
        "Assert",
        "AssignVariableOp",  # takes the tensor as it is
        "Const",
        "Identity",
        "IdentityN",
        "IteratorGetNext",
        "NoOp",
        "PreventGradient",
        "ReadVariableOp",
        "Reshape",
        "Shape",
        "ShapeN",
        "Size",
        "Squeeze",
        "StopGradient",
        "VarHandleOp",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """The largest function that was started."""

    num_nodes: int  # Of all partitions.
    # Transfers of nothing, for which something on another device waits.
    num_controls: int
    num_data: int  # Transfers of values between devices.


def partitions(first_call):
    """Returns the graph of each device of the largest function that a call starts."""
    context = eager_context.context()
    context.enable_graph_collection()
    try:
        first_call()
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    return max(
        (graph.partition_graphs for graph in graphs),
        key=lambda found: sum(len(part.node) for part in found),
    )


def before(graph):
    """Returns a function from a node of a graph to all nodes that end before it."""
    inputs = {
        node.name: [text.removeprefix("^").partition(":")[0] for text in node.input]
        for node in graph.node
    }

    def ancestors(name):
        stack, found = list(inputs[name]), set[str]()
        while stack:
            one = stack.pop()
            if one not in found:
                found.add(one)
                stack += inputs.get(one, [])
        return found

    return ancestors


def together(graphs):
    """Joins the graphs of all devices: what receives has what is sent as its input."""
    joined = type(graphs[0])()
    for graph in graphs:
        joined.node.extend(graph.node)
    sent = {_rendezvous(node): node.name for node in joined.node if node.op in _SENDS}
    for node in joined.node:
        if node.op in _RECEIVES:
            node.input.append(sent[_rendezvous(node)])
    return joined


def _rendezvous(node):
    names = ("tensor_name", "send_device", "recv_device")
    return tuple(node.attr[name].s for name in names)


def executed(first_call, *, between_processes=False):
    """Returns what a call executes; no call of the same function may be before it."""
    return count(partitions(first_call), between_processes=between_processes)


def count(graphs, *, between_processes=False):
    """Counts what ``executed`` does in the graphs of all devices."""
    sources = [
        nodes[send.input[0].partition(":")[0]]
        for part in graphs
        for nodes in [{node.name: node for node in part.node}]
        for send in part.node
        if send.op in _SENDS and (_leaves_process(send) or not between_processes)
    ]
    num_controls = sum(map(_is_dummy, sources))
    return Executed(
        num_nodes=sum(len(part.node) for part in graphs),
        num_controls=num_controls,
        num_data=len(sources) - num_controls,
    )


def launches(graph):
    """Counts the nodes of a device that would start a kernel on a GPU."""
    return sum(node.op not in _WITHOUT_LAUNCH for node in graph.node)


def _leaves_process(send):
    """Whether what is sent goes to a device of another process."""
    source, target = (send.attr[f"{end}_device"].s for end in ("send", "recv"))
    return bool(source.rpartition(b"/")[0] != target.rpartition(b"/")[0])


def _is_dummy(node):
    """Whether a node is the empty constant that TensorFlow sends for a control edge."""
    if node.op != "Const" or not node.input:
        return False
    return [0] == [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]


COUNTED = (
    "BatchMatMulV2",
    "MatMul",
    "Conv2D",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
)


def multiply_adds(function, *args):
    """Returns the products of convolutions and matrices that the outputs need."""
    traced = tf.function(function, autograph=False).get_concrete_function(*args)
    outputs = [t for t in tf.nest.flatten(traced.outputs) if t is not None]
    pending, seen, total = [t.op for t in outputs], set(), 0
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        total += of_op(op)
        pending += [tensor.op for tensor in op.inputs]
    return total


def of_op(op):
    if op.type not in COUNTED:
        assert "Conv" not in op.type, op.type
        assert "MatMul" not in op.type, op.type
        return 0
    shapes = [tensor.shape.as_list() for tensor in op.inputs]
    if op.type == "BatchMatMulV2":
        inner = shapes[0][-2 if op.get_attr("adj_x") else -1]
        return math.prod(op.outputs[0].shape) * inner
    if op.type == "MatMul":
        rows, inner = shapes[0][::-1] if op.get_attr("transpose_a") else shapes[0]
        columns = shapes[1][0 if op.get_attr("transpose_b") else 1]
        return rows * inner * columns
    if op.type == "Conv2D":
        return math.prod(op.outputs[0].shape) * math.prod(shapes[1][:3])
    if op.type == "Conv2DBackpropInput":
        return math.prod(shapes[2]) * math.prod(shapes[1][:3])
    assert op.type == "Conv2DBackpropFilter"
    sizes = op.inputs[1]  # of the kernel; its gradient has no static shape
    if sizes.op.type == "ShapeN":
        kernel = sizes.op.inputs[sizes.value_index].shape.as_list()
    else:
        kernel = tf.get_static_value(sizes)
    return math.prod(shapes[2]) * math.prod(kernel[:3])


def emitted(repl, step, *specs):
    """The graph of a ``tf.function`` around a step; nothing of it runs."""
    strategy = repl.as_strategy()
    around = tf.function(lambda *given: strategy.run(step, given), autograph=False)
    return around.get_concrete_function(*specs).graph.as_graph_def()


def linked(repl, step, *specs):
    """The function in which a step is linked for all replicas, which it calls."""
    called = [node.attr["f"].func.name for node in emitted(repl, step, *specs).node]
    (name,) = [name for name in called if name.startswith("replicated_")]
    return eager_context.context().get_function_def(name)


def called_by(nodes):
    """All functions that nodes call, and that those call."""
    context, found, pending = eager_context.context(), {}, list(nodes)
    while pending:
        node = pending.pop()
        names = {node.op, *(attr.func.name for attr in node.attr.values())}
        for name in filter(context.has_function, names - found.keys()):
            found[name] = context.get_function_def(name)
            pending += found[name].node_def
    return list(found.values())


def of_replica(function, replica=0):
    """The nodes of one replica, and those of the functions that they call."""
    prefix = f"replica_{replica}/"
    own = [node for node in function.node_def if node.name.startswith(prefix)]
    return own + [node for called in called_by(own) for node in called.node_def]


def only_program(repl):
    ((_, program),) = repl._programs.items()
    return program


def linked_graph(program):
    """The function of a step as a graph whose shapes are known."""
    assembly = program._assembly
    function = eager_context.context().get_function_def(assembly._name)
    shapes, names = {}, {}
    for index, outer in enumerate(assembly.captured):
        if outer.dtype == tf.resource:
            (data,) = outer._handle_data.shape_and_type
            shapes[f"capture_{index}"] = data.shape
    for node in function.node_def:
        if node.op != "ReadVariableOp":
            continue
        # A read has no shape of its own in a function.
        handle, dtype = node.input[0], node.attr["dtype"].type
        controls = [text for text in node.input if text.startswith("^")]
        node.op = "Placeholder"
        del node.input[:]
        node.input.extend(controls)
        node.attr.clear()
        node.attr["dtype"].type = dtype
        node.attr["shape"].shape.CopyFrom(shapes[handle])
        names[f"{node.name}:value:0"] = f"{node.name}:output:0"
    for node in function.node_def:
        for place, text in enumerate(node.input):
            node.input[place] = names.get(text, text)
    num_inputs = len(function.signature.input_arg)
    known = [None] * len(assembly.captured)
    specs = [spec.shape for spec in tf.nest.flatten(program._specs)]
    num_replicas = (num_inputs - len(known)) // max(len(specs), 1)
    return function_def_to_graph.function_def_to_graph(
        function, input_shapes=[*known, *specs * num_replicas]
    )


def graph_def_of(program):
    """The same, as ``tf.Graph`` writes it, with the functions that it calls."""
    context = eager_context.context()
    function = context.get_function_def(program._assembly._name)
    graph_def, _ = function_def_to_graph.function_def_to_graph_def(function)
    graph_def.library.function.extend(called_by(graph_def.node))
    return graph_def


def between_devices(graph):
    """By device, the bytes of its tensors times the other devices that use each."""
    moved = {}
    for op in graph.get_operations():
        for tensor in op.outputs:
            users = {user.device for user in tensor.consumers()} - {op.device, ""}
            if op.type == "Placeholder" and not op.device:
                continue  # an argument, which every device gets
            if tensor.dtype == tf.resource or not users:
                continue
            size = tensor.shape.num_elements() * tensor.dtype.size
            moved[op.device] = moved.get(op.device, 0) + size * len(users)
    return moved


@contextlib.contextmanager
def listed(names, *, gpus_per_card=1):
    """TensorFlow lists these devices (full names) too; GPUs may share a card."""
    devices = [
        tf.config.LogicalDevice(name, tf.DeviceSpec.from_string(name).device_type)
        for name in names
    ]
    gpus = [device for device in devices if device.device_type == "GPU"]
    starts = range(0, len(gpus), gpus_per_card)
    cards = [gpus[start : start + gpus_per_card] for start in starts]
    own = tf.config.list_logical_devices
    with (
        mock.patch.object(
            tf.config, "list_logical_devices", lambda kind=None: [*own(kind), *devices]
        ),
        mock.patch.object(tf.config, "get_visible_devices", return_value=cards),
        mock.patch.object(
            tf.config, "get_logical_device_configuration", lambda card: card
        ),
    ):
        yield


def on_devices(names, *, gpus_per_card=1, backend="in_graph", num_workers=1):
    """A replicator on devices that need not be there, one for each replica here."""
    count = len(names) * num_workers
    with listed(names, gpus_per_card=gpus_per_card):
        return replicator.create(backend, num_replicas=count, devices=names)


def gpus_of_workers(repl, count, **options):
    """One of so many GPUs in each worker of a job."""
    task = f"/job:worker/replica:0/task:{repl.worker_id}/device"
    names = [f"{task}:GPU:{index}" for index in range(count)]
    options |= {"backend": "multi_worker", "num_workers": repl.num_workers}
    return on_devices(names, **options)


@contextlib.contextmanager
def tpu(make_strategy, *, mesh_shape=(2, 2, 1, 2)):
    """Every TPU that is asked for is found; ``make_strategy`` makes its strategy.

    Its keyword arguments are those of ``tf.distribute.TPUStrategy``; an assignment is
    what ``DeviceAssignment.build`` was asked for.
    """
    shape = np.array(mesh_shape)
    topology = types.SimpleNamespace(
        num_tasks=1, num_tpus_per_task=shape.prod(), mesh_shape=shape
    )
    assignment = types.SimpleNamespace(build=lambda _, **asked: asked)
    resolver = tf.distribute.cluster_resolver
    experimental = tf.tpu.experimental
    with (
        mock.patch.object(resolver, "TPUClusterResolver"),
        mock.patch.object(tf.config, "experimental_connect_to_cluster"),
        mock.patch.object(experimental, "initialize_tpu_system", return_value=topology),
        mock.patch.object(experimental, "DeviceAssignment", assignment),
        mock.patch.object(
            tf.distribute, "TPUStrategy", lambda _, **options: make_strategy(**options)
        ),
    ):
        yield
