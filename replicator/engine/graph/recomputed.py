"""Recomputed: random numbers of ``tf.recompute_grad`` and ``keras.remat``.

The backward pass runs the function again, and draws again: other numbers than those of
which the forward pass made the loss, so that the gradient is that of another function.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.errors import RecomputationError
from replicator.step.tracing import line_of, shown
from replicator.variables.kinds import Kind, declared_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FUNCTION = "inner_recompute_grad"


def check(graph: Any, variables: Mapping[str, Any]) -> None:
    """Rejects a step that draws again what its gradient needs again."""
    states = {
        name
        for name, variable in variables.items()
        if declared_kind(variable) is Kind.RANDOM
    }
    for operation in graph.get_operations():
        if not _draws(operation, states):
            continue
        frames = list(operation.traceback or ())
        if any(frame.name == _FUNCTION for frame in frames):
            line = line_of(frames)
            raise RecomputationError(
                "tf.recompute_grad or keras.remat runs a function again in the "
                f"backward pass, and it draws random numbers{shown([line])}, which "
                "are other ones then, so its gradient would be wrong; draw outside "
                "that function and pass the numbers to it, or draw inside by a "
                "function of tf.random.stateless_ whose seed is passed to it"
            )


def _draws(operation: Any, states: Collection[str]) -> bool:
    """Whether an operation draws from a stream, or moves the state of one on."""
    if operation.type == "RngReadAndSkip":
        return True
    if operation.type.startswith("Assign"):
        return operation.inputs[0].op.name in states
    return _is_random(operation.type)


@functools.cache
def _is_random(op: str) -> bool:
    """Whether operations of a type have a stream of their own, and so a seed."""
    known = _tf_compat.op_def(op)
    if known is None:  # the name of a function
        return False
    return known.is_stateful and any(attr.name == "seed" for attr in known.attr)
