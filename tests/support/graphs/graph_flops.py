"""Counts the multiply-adds that a traced function does, from its graph."""

import math

import tensorflow as tf

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
