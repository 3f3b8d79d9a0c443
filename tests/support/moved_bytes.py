"""Bytes that a linked step moves between devices, counted edge by edge in its graph.

So what ``explain()`` says is compared with the graph that runs, and not with itself.
"""

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import function_def_to_graph


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
