"""Private names of TensorFlow's variables: who is told that one was written.

TensorFlow's variables have no version, and no callback. Every write from Python, also
that of a restored checkpoint, is a method of the variable's class, so a variable whose
writes matter gets a subclass of its class in which these methods tell of it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES = (
    "assign",
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    *(f"scatter_{op}" for op in ("add", "div", "max", "min", "mul", "sub", "update")),
    *(f"scatter_nd_{op}" for op in ("add", "max", "min", "sub", "update")),
    "_restore_from_tensors",
    "_strided_slice_assign",
)


def tell_of_writes(variable: Any, told: Callable[[Any], None]) -> None:
    """Calls a function after each write that Python makes eagerly (test_handles).

    Writes of graphs, and those of raw ops on the variable's handle, are not told.
    """
    kind = type(variable)
    if getattr(kind, "told_of_writes", None) is not told:
        variable.__class__ = _telling(kind, told)


_KINDS: dict[tuple[type, Callable[[Any], None]], type] = {}


def _telling(kind: type, told: Callable[[Any], None]) -> type:
    if (kind, told) not in _KINDS:
        _KINDS[kind, told] = _make(kind, told)
    return _KINDS[kind, told]


def _make(kind: type, told: Callable[[Any], None]) -> type:
    methods = {
        name: _telling_method(getattr(kind, name), told)
        for name in WRITES
        if hasattr(kind, name)
    }
    names = {"__module__": kind.__module__, "told_of_writes": staticmethod(told)}
    return type(kind.__name__, (kind,), {**methods, **names})


def _telling_method(write: Any, told: Callable[[Any], None]) -> Any:
    @functools.wraps(write)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        result = write(self, *args, **options)
        if tf.executing_eagerly():
            told(self)
        return result

    return method
