"""A function that is called only where a condition holds, at the cost of six nodes.

``tf.cond`` becomes a ``Switch`` for every argument, also where its branch is not taken,
and the op behind it takes variables of one device only. Here the call itself waits for
one side of a ``Switch`` (test_outside_writes).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2

from replicator._tf import compat, dispatch

if TYPE_CHECKING:
    from collections.abc import Sequence

_COUNTER = itertools.count()


class Branch:
    """Calls of a function under a condition; keeps it as long as this object lives."""

    def __init__(self, traced: Any, dtypes: Sequence[tf.DType], device: str) -> None:
        """Prepares."""
        self._traced = traced
        self._name = f"replicator_branch_{next(_COUNTER)}"
        called = self._traced._inference_function.name.decode()  # noqa: SLF001
        function = _function_def(self._name, called, dtypes, device)
        compat.keep_functions(self, [function])

    def call(self, condition: tf.Tensor, args: Sequence[Any]) -> None:
        """Emits the call in the graph."""
        dispatch.call_function(self._name, [condition, *args], [])


def _function_def(
    name: str, called: str, dtypes: Sequence[tf.DType], device: str
) -> Any:
    function = function_pb2.FunctionDef()
    signature = function.signature
    signature.name, signature.is_stateful = name, True
    signature.input_arg.add(name="condition", type=tf.bool.as_datatype_enum)
    args = [f"arg_{index}" for index in range(len(dtypes))]
    for arg, dtype in zip(args, dtypes, strict=True):
        signature.input_arg.add(name=arg, type=dtype.as_datatype_enum)

    def add(node: str, op: str, inputs: Sequence[str], **types: tf.DType) -> Any:
        added = function.node_def.add(name=node, op=op, input=inputs, device=device)
        for attr, dtype in types.items():
            added.attr[attr].type = dtype.as_datatype_enum
        return added

    def add_end(node: str, after: str) -> None:
        """Something that exists on one side only, for the merge."""
        const = add(node, "Const", [f"^{after}"], dtype=tf.int32)
        const.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))

    add("switch", "Switch", ["condition", "condition"], T=tf.bool)
    add("on", "Identity", ["switch:output_true:0"], T=tf.bool)
    add("off", "Identity", ["switch:output_false:0"], T=tf.bool)
    call = add("call", "StatefulPartitionedCall", [*args, "^on"])
    call.device = ""  # it runs on those of its arguments
    call.attr["f"].func.name = called
    call.attr["Tin"].list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
    call.attr["Tout"].list.SetInParent()
    is_soft = tf.config.get_soft_device_placement()
    call.attr["config_proto"].s = dispatch.unoptimized_config(
        is_soft
    ).SerializeToString()
    add_end("called", "call")
    add_end("skipped", "off")
    merge = add("merge", "Merge", ["called:output:0", "skipped:output:0"], T=tf.int32)
    merge.attr["N"].i = 2
    # What follows must wait for both sides, and run after either.
    signature.control_output.append("merge")
    function.control_ret["merge"] = "merge"
    return function
