"""Which operations of a graph one call of a tape's ``gradient`` has made.

The name of an operation does not tell: gradients of custom functions have no scope, and
a gradient that a loss is made of has the scope of the gradient of that loss.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def backward(
    updates: Iterable[Any],
    before: Callable[[Any], list[Any]],
    operations: Sequence[Any],
) -> set[Any]:
    """The operations of the gradients that are updated with, not of what losses read.

    Args:
      updates: Operations whose results variables are updated with.
      before: What an operation reads.
      operations: All of the graph, in the order of their creation.
    """
    call_of = _calls(operations)
    stack, found = list(updates), set()
    while stack:
        op = stack.pop()
        if op in found:
            continue
        found.add(op)
        call = call_of.get(op)
        # What a call reads of elsewhere is the forward pass, and other calls in that.
        stack += [one for one in before(op) if call in (None, call_of.get(one))]
    return {op for op in found if op in call_of}


def is_result(tensor: tf.Tensor) -> bool:
    """Whether a call of a tape has made a tensor, or what it made is one with its rows.

    The latter is a sparse gradient that was made dense.
    """
    op = tensor.op
    if op.type == "UnsortedSegmentSum" and is_result(op.inputs[1]):
        return True
    return _caller(op.traceback) is not None


def is_first(op: Any) -> bool:
    """Whether a call begins with an operation: the ones in the shape of its target."""
    scopes = op.name.split("/")
    if not any(scope.rstrip("_0123456789") in _ONES for scope in scopes):
        return False  # without a look at its lines
    names = iter([frame.name for frame in op.traceback or ()])
    return _PASS in names and next(names, "") in _MAKERS


def _calls(operations: Sequence[Any]) -> dict[Any, int]:
    """The number of the call that made an operation; none of other operations.

    What a call makes follows each other. Two calls of one line that do are taken for
    one: nothing is between them that could make a loss of the first gradient.
    """
    calls: dict[Any, int] = {}
    number, previous = 0, None
    for op in operations:
        caller = _caller(op.traceback)
        number += caller != previous
        previous = caller
        if caller is not None:
            calls[op] = number
    return calls


def _caller(stack: Iterable[Any] | None) -> tuple[tuple[str, int], ...] | None:
    """The lines that led to a call of ``gradient``, if an operation is of one."""
    lines: list[tuple[str, int]] = []
    for frame in stack or ():
        if frame.name == "gradient" and frame.filename == _FILE:
            return tuple(lines)
        lines.append((frame.filename, frame.lineno))
    return None


_ONES = ("ones", "ones_like")
# The function that runs a backward pass, and those that it asks for ones.
_PASS, _MAKERS = "imperative_grad", ("_ones", "ones_like")
_FILE = inspect.getfile(tf.GradientTape)
