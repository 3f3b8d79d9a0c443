"""Private facts about the variables that a graph closes over."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from tensorflow.python.ops import resource_variable_ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_VARIABLE = resource_variable_ops.BaseResourceVariable
# What an assignment in a graph returns: another object with the same handle.
_RESULT = resource_variable_ops._UnreadVariable  # noqa: SLF001


def is_variable(handle: Any) -> bool:
    """Whether a captured resource is that of a variable (test_captures)."""
    data = getattr(handle, "_handle_data", None)
    return data is not None and bool(data.is_set) and len(data.shape_and_type) == 1


def is_result(variable: Any) -> bool:
    """Whether it is what an assignment in a graph returned (test_captures)."""
    return isinstance(variable, _RESULT)


def variables_of(handles: Iterable[Any]) -> Mapping[int, Any]:
    """Finds the variables of handles that no graph has recorded (test_captures).

    An operation that returns nothing, such as ``assign_add(..., read_value=False)``,
    tells the graph the handle of its variable, and not the variable.
    """
    wanted = {id(handle) for handle in handles}
    if not wanted:
        return {}
    # A table that creation fills would have to replace TensorFlow's constructor, and
    # still not know what was made before.
    found: dict[int, Any] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, _VARIABLE) and not issubclass(kind, _RESULT):
            handle = getattr(thing, "_handle", None)
            if id(handle) in wanted:
                found.setdefault(id(handle), thing)
    return found
