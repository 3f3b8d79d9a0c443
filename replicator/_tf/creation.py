"""Initial values of variables that a step creates, outside of the step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.ops import resource_variable_ops

from replicator._tf import compat


def outside_of_step(value: Any) -> Any:
    """The initial value of a variable for its creation outside (test_creation)."""
    if not tf.is_symbolic_tensor(value):
        return value

    def lifted() -> Any:
        copies = lift_to_graph.lift_to_graph([value], compat.current_graph())
        return copies[value]

    try:
        with tf.init_scope():
            return tf.function(lifted, autograph=False)()
    except lift_to_graph.UnliftableError:
        return None


def make(**options: Any) -> tf.Variable:
    """Makes a variable without the creators that are in place (test_creation)."""
    return resource_variable_ops.default_variable_creator_v2(None, **options)
