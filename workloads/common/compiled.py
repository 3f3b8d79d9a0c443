"""Option ``jit``: what XLA compiles of a step.

``compute``: forward and backward pass of each replica. The step around them stays a
graph: random numbers are drawn before, and collectives and updates run after. So the
same step runs on every backend, and draws the same numbers as without XLA.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads.options import JIT_COMPUTE

if TYPE_CHECKING:
    from collections.abc import Callable


class _Deferred(threading.local):
    """Assignments of the program that this thread traces; None outside of one."""

    assignments: list[tuple[Any, tf.Tensor]] | None = None


_deferred = _Deferred()


def assign(variable: Any, value: tf.Tensor) -> None:
    """Assigns a value that is the same on all replicas.

    In a compiled program it is an output, which is assigned afterwards: stock
    strategies choose the replica that assigns, which they cannot in a function.
    (``in_graph`` does not look into programs, so each replica then keeps a copy.)
    """
    if _deferred.assignments is None:
        variable.assign(value)
    else:
        _deferred.assignments.append((variable, value))


def compiled(function: Callable[..., Any], jit: str) -> Callable[..., Any]:
    """Returns a function, compiled where ``jit`` is ``compute``."""
    return Compiled(function) if jit == JIT_COMPUTE else function


class Compiled:
    """A function that XLA compiles.

    Attributes:
      program: The compiled function; of ``tf.IndexedSlices`` it returns values and
        indices, and beside the outputs the values that are assigned afterwards.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._outputs: Any = None
        self._shapes: list[Any] = []
        self._assigned: list[Any] = []
        self.program = tf.function(self._flat, jit_compile=True, autograph=False)

    def __call__(self, *args: Any) -> Any:
        """Calls the compiled function; arguments and results as of the original."""
        flat, values = self.program(*args)
        for variable, value in zip(self._assigned, values, strict=True):
            variable.assign(value)
        # A shape that a program returns is a tensor like any other, of which nobody
        # could know that it is the same on all replicas.
        leaves = [
            leaf
            if shape is None
            else tf.IndexedSlices(*leaf, dense_shape=tf.constant(shape, tf.int64))
            for leaf, shape in zip(flat, self._shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._outputs, leaves)

    def _flat(self, *args: Any) -> tuple[list[Any], list[tf.Tensor]]:
        _deferred.assignments = []
        try:
            outputs = self._function(*args)
            assignments = _deferred.assignments
        finally:
            _deferred.assignments = None
        leaves = tf.nest.flatten(outputs)
        self._outputs = tf.nest.map_structure(lambda _: 0, outputs)
        self._assigned = [variable for variable, _ in assignments]
        self._shapes = [
            tf.get_static_value(leaf.dense_shape)
            if isinstance(leaf, tf.IndexedSlices)
            else None
            for leaf in leaves
        ]
        flat = [
            (leaf.values, leaf.indices) if isinstance(leaf, tf.IndexedSlices) else leaf
            for leaf in leaves
        ]
        return flat, [value for _, value in assignments]
