"""Gradients of ``fit`` that are those of a sum over examples, found in the graph.

A loss that nothing has reduced, or a sum that is divided by a number of one's own as by
the size of the global batch, has the gradient of a sum. Averaged over replicas it would
be smaller by their number, which Adam hides. A gradient begins with ones, in the shape
of the loss; what was summed is a broadcast of them, and a mean is divided by its size.
What cannot be told, as behind the factor of a loss scale, is taken for a mean. A
gradient that a loss is made of, as a penalty on slopes is, may be that of a sum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.strategy import tape_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_ONES = frozenset({"Const", "Fill", "OnesLike"})
_DIVISIONS = frozenset({"DivNoNan", "RealDiv"})
_ADDITIONS = frozenset({"Add", "AddN", "AddV2", "ConcatV2"})
_LINEAR = frozenset({"Mul", "Neg", *_DIVISIONS})
_SHAPED = frozenset({"ExpandDims", "Identity", "Reshape"})


def find(
    updates: Iterable[Any],
    before: Callable[[Any], list[Any]],
    is_of_examples: Callable[[tf.Tensor], bool],
    operations: Sequence[Any],
) -> Iterator[Any]:
    """Finds operations that begin, or broadcast, the gradient of such a sum.

    Args:
      updates: The operations whose results variables of the model are updated with.
      before: What an operation reads.
      is_of_examples: Whether a value depends on the examples of this replica alone.
      operations: All of the graph, in the order of their creation.
    """
    suspects = [op for op in operations if _is_suspect(op, is_of_examples)]
    if suspects:  # looking at the lines of all operations takes a while
        own = tape_calls.backward(updates, before, operations)
        yield from (op for op in suspects if op in own)


def _is_suspect(op: Any, is_of_examples: Callable[[tf.Tensor], bool]) -> bool:
    """Whether a sum begins here, that of an update or of what a loss is made of."""
    if op.type in ("BroadcastTo", "Tile"):
        return _is_of_sum(op, is_of_examples)
    return _is_ones(op) and op.outputs[0].shape.rank != 0


def _is_ones(op: Any) -> bool:
    return op.type in _ONES and tape_calls.is_first(op)


def _consumers(op: Any) -> list[Any]:
    return [one for tensor in op.outputs for one in tensor.consumers()]


def _is_of_sum(op: Any, is_of_examples: Callable[[tf.Tensor], bool]) -> bool:
    """Whether a broadcast is the gradient of a sum that no size has divided."""
    divisor = _divisor_before(op.inputs[0])
    if divisor is None:
        return False
    shape = op.outputs[0].shape
    if shape.rank == 0:
        return False  # a single number has no sum
    divisors = {divisor}
    for reader in _readers(op):
        if reader.type not in (*_DIVISIONS, "Mul"):
            continue
        other = reader.inputs[int(reader.inputs[0].op in (op, *_consumers(op)))]
        value = tf.get_static_value(other)
        if reader.type in _DIVISIONS:
            if value is None or float(value) == shape.num_elements():
                return False  # unknown, or a mean, whatever has scaled it
            divisors = {one * float(value) for one in divisors}
        elif other.shape.rank == 0 and value and not _is_of_power(reader):
            divisors |= {one / float(value) for one in divisors}
    if any(_is_size(one, shape) for one in divisors):
        return False
    return _reaches_examples(op, is_of_examples)


def _is_of_power(op: Any) -> bool:
    """Whether a factor is an exponent, as in the gradient of a square."""
    return any(x.op.type == "Pow" for one in _consumers(op) for x in one.inputs)


def _is_size(divisor: float, shape: tf.TensorShape) -> bool:
    """Whether a number is one of examples, or of their parts."""
    if not shape.is_fully_defined() or not math.isclose(divisor, round(divisor)):
        return False
    number = round(divisor)
    return number > 0 and number % shape[0] == 0 == shape.num_elements() % number


def _readers(op: Any) -> list[Any]:
    """What computes with an operation's result, reshaped or not."""
    near = _consumers(op)
    far = [two for one in near if one.type in _SHAPED for two in _consumers(one)]
    return [one for one in [*near, *far] if one.type not in _SHAPED]


def _reaches_examples(op: Any, is_of_examples: Callable[[tf.Tensor], bool]) -> bool:
    """Whether what was summed are examples: not weights, as in a penalty on them.

    A gradient is multiplied by what depends on them then, at once or after powers; what
    it is added to is of other parts of the loss.
    """
    stack, found = [op], {op}
    while stack:
        for reader in _readers(stack.pop()):
            others = [one for one in reader.inputs if one.op not in found]
            is_added = reader.type in _ADDITIONS
            if not is_added and any(map(is_of_examples, others)):
                return True
            if reader not in found and (is_added or reader.type in _LINEAR):
                found.add(reader)
                stack.append(reader)
    return False


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
