"""Turns: steps that one graph calls communicate one after the other.

A graph runs what it can at the same time. Two steps that do would meet those of other
workers in another order than theirs, and two calls of one step under the same keys. So
each writes a variable that nobody reads before it and after it, which TensorFlow keeps
in the order of the program, in loops and branches too. Control edges between the calls
would not reach into those.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def taken(device: str) -> Iterator[None]:
    """Emits a turn in the graph that is being built: all that is emitted inside."""
    graph = _tf_compat.current_graph()
    begin = _write(device)
    num_before = len(graph.get_operations())
    with tf.control_dependencies([begin]):
        yield
    made = graph.get_operations()[num_before:]
    # What has no effect neither communicates.
    with tf.control_dependencies([op for op in made if op.op_def.is_stateful]):
        _write(device)


def _write(device: str) -> Any:
    with tf.device(device):
        return tf.raw_ops.AssignVariableOp(resource=_turn(device), value=0)


@functools.cache
def _turn(device: str) -> Any:
    """The variable, outside of all graphs."""
    with tf.init_scope(), tf.device(device):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32, shape=[], shared_name="replicator_turn"
        )
