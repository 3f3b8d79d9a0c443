"""Private interfaces of TensorFlow about tapes and vectorized loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops.parallel_for import pfor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRADIENT_SCOPE = "gradient_tape/"
"""The name scope in which a tape adds to a traced graph."""


def marker(value: tf.Tensor, shape: tf.TensorShape, name: str) -> tf.Tensor:
    """A node that passes a value on without telling what it is (test_vectorized).

    Its type keeps TensorFlow from inferring the value when it traces, and is one for
    which ``vectorize_markers`` can say what a vectorized loop makes of it.
    """
    # Forward mode cannot read the attributes of this op type, so it gets the gradient.
    with record.stop_recording():
        result = tf.raw_ops.PlaceholderWithDefault(input=value, shape=shape, name=name)
    record.record_operation("Identity", [result], [value], lambda gradient: [gradient])
    return result


def call_with_gradient(
    function: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    gradient: Callable[..., Any],
) -> list[tf.Tensor]:
    """Calls a ``tf.custom_gradient`` function for tapes and forward accumulators.

    TensorFlow's decorator ends in an identity that forward accumulators see first, and
    whose derivative is not that of the function (test_collective_gradients).
    """
    with record.stop_recording():
        results = list(function(*tensors))
    record.record_operation("Collective", results, list(tensors), gradient)
    return results


def vectorize_markers(
    convert: Callable[[str, Callable[[str], Any]], tuple[tf.Tensor, bool] | None],
) -> None:
    """Tells vectorized loops what becomes of a marker (test_vectorized)."""
    # Otherwise a loop copies, under a new name, what is the same in all iterations.
    pfor.force_stateful_ops.add("PlaceholderWithDefault")

    @pfor.RegisterPFor("PlaceholderWithDefault")
    def convert_marker(pfor_input: Any) -> Any:
        def converted(node: str) -> tuple[tf.Tensor, bool]:
            # Of the identity that is the operand, no tape knows.
            (tensor,) = pfor_input.op.graph.get_operation_by_name(node).inputs
            value = pfor_input.pfor._convert_helper(tensor)  # noqa: SLF001
            return value.t, value.is_stacked

        result = convert(pfor_input.op.name, converted)
        value, is_stacked = result or pfor_input.input(0)[:2]
        return pfor.wrap(value, is_stacked)
