"""Compiled steps: a whole step as a program of XLA, with its collectives and updates.

A step that is wrapped in ``CompiledStep`` is compiled by every backend that can. What
it draws by ``draw`` is drawn before the program starts: XLA has random numbers of its
own, with which two backends would train differently.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.validation.user_functions import check_function, check_takes_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")


class _Around(threading.local):
    """The graph that calls the program this thread traces; None outside of one."""

    graph: Any = None


_AROUND = _Around()


class CompiledStep:
    """A step function for ``Replicator.run`` that XLA compiles as a whole.

    Create it once, as a step function. Shapes must be static, and every operation must
    be one that XLA has. Several replicas need a GPU each.
    """

    def __init__(self, step_fn: Callable[..., Any]) -> None:
        """Wraps a step.

        Args:
          step_fn: Single-device code, as for ``Replicator.run``.

        Raises:
          TypeError: It is not a function.
        """
        check_function(step_fn, "CompiledStep")
        self.step_fn = step_fn
        functools.update_wrapper(self, step_fn, updated=())

    def __call__(self, *batch: Any) -> Any:
        """Emits the step as a program in the graph that is being traced."""
        return in_program(self.step_fn, *batch)


def in_program(function: Callable[..., Any], *args: Any) -> Any:
    """Emits a call of a function that XLA must compile.

    Args:
      function: Takes and returns nests of tensors.
      *args: The nests.
    """
    around = _tf_compat.current_graph()

    def traced(*inner: Any) -> Any:
        with _called_from(around):
            return function(*inner)

    return tf.function(traced, jit_compile=True)(*args)


def draw(function: Callable[[], _T]) -> _T:
    """Draws random numbers for a step, also for one that is compiled.

    Args:
      function: Takes nothing that the step computes; returns a nest of tensors.

    Returns:
      What it returned. In a ``CompiledStep`` it ran before the program: the numbers are
      those of the same step without XLA.

    Raises:
      TypeError: ``function`` cannot be called without an argument.
    """
    check_takes_none(function, "draw")
    if _AROUND.graph is None:
        return function()
    with _AROUND.graph.as_default(), _called_from(None):
        return function()


@contextlib.contextmanager
def _called_from(graph: Any) -> Iterator[None]:
    before, _AROUND.graph = _AROUND.graph, graph
    try:
        yield
    finally:
        _AROUND.graph = before
