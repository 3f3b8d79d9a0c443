"""Gradients of ``fit`` that are those of a sum over examples, found in the graph.

A loss that nothing has reduced, or a sum that is divided by a number of one's own as by
the size of the global batch, has the gradient of a sum. Averaged over replicas it would
be smaller by their number, which Adam hides. A gradient begins with ones, in the shape
of the loss; what was summed is a broadcast of them, and a mean is divided by its size.
What cannot be told, as behind the factor of a loss scale, is taken for a mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_SCOPE = "gradient_tape/"
_ONES = frozenset({"Const", "Fill", "OnesLike"})
_DIVISIONS = frozenset({"DivNoNan", "RealDiv"})
_SHAPED = frozenset({"ExpandDims", "Identity", "Reshape"})


def find(
    updates: Iterable[Any],
    before: Callable[[Any], list[Any]],
    is_of_examples: Callable[[tf.Tensor], bool],
) -> Iterator[Any]:
    """Finds operations that begin, or broadcast, the gradient of such a sum.

    Args:
      updates: The operations whose results variables of the model are updated with.
      before: What an operation reads.
      is_of_examples: Whether a value depends on the examples of this replica alone.
    """
    for op in _backward(updates, before):
        if op.type in _ONES:
            is_found = _is_ones(op) and op.outputs[0].shape.rank != 0
        else:
            is_broadcast = op.type in ("BroadcastTo", "Tile")
            is_found = is_broadcast and _is_of_sum(op, is_of_examples)
        if is_found:
            yield op


def _backward(
    updates: Iterable[Any], before: Callable[[Any], list[Any]]
) -> Iterator[Any]:
    """The backward pass of an update: not those of gradients that a loss is made of."""
    stack, found = list(updates), set()
    while stack:
        op = stack.pop()
        if op in found:
            continue
        found.add(op)
        is_own = _SCOPE in op.name
        if is_own or _is_ones(op):
            yield op
        # Beyond it is the forward pass, and in that any other backward pass.
        stack += [
            one
            for one in before(op)
            if not is_own or _SCOPE in one.name or _is_ones(one)
        ]


def _is_ones(op: Any) -> bool:
    """Whether they are the ones with which a tape begins, which only it reads."""
    scopes = op.name.split("/")
    is_named = any(
        scope.rstrip("_0123456789") in ("ones", "ones_like") for scope in scopes
    )
    return is_named and all(_SCOPE in one.name for one in _consumers(op))


def _consumers(op: Any) -> list[Any]:
    return [one for tensor in op.outputs for one in tensor.consumers()]


def _is_of_sum(op: Any, is_of_examples: Callable[[tf.Tensor], bool]) -> bool:
    """Whether a broadcast is the gradient of a sum that no size has divided."""
    divisor = _divisor_before(op.inputs[0])
    readers = [one for one in _consumers(op) if one.type not in _SHAPED]
    readers += [
        two for one in _consumers(op) if one.type in _SHAPED for two in _consumers(one)
    ]
    for reader in readers:
        if reader.type in _DIVISIONS and divisor is not None:
            value = tf.get_static_value(reader.inputs[1])
            divisor = None if value is None else divisor * float(value)
    if divisor is None:
        return False
    if not any(is_of_examples(tensor) for one in readers for tensor in one.inputs):
        return False
    shape = op.outputs[0].shape
    if not shape.is_fully_defined():
        return True
    rows, size = shape[0], shape.num_elements()
    return bool(math.fmod(divisor, rows) or math.fmod(size, divisor))


def _divisor_before(tensor: tf.Tensor) -> float | None:
    """The product of the numbers that ones were divided by; None if there is more."""
    divisor = 1.0
    while True:
        op = tensor.op
        if _is_ones(op):
            return divisor if tensor.shape.rank == 0 else None
        if op.type in _DIVISIONS:
            value = tf.get_static_value(op.inputs[1])
            if value is None:
                return None
            divisor *= float(value)
        elif op.type not in _SHAPED:
            return None
        tensor = op.inputs[0]
