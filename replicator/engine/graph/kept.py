"""What the backward pass of a step takes from its forward pass: activations.

All of it exists at once, when the one ends and the other begins. The batch is left
out, which is there for the whole step, and so are values of variables.
"""

from __future__ import annotations

from typing import Any

from replicator._tf.gradients import GRADIENT_SCOPE
from replicator.engine.graph.origins import Origins

_GIVEN = frozenset({"Placeholder", "Const"})
# What one kernel writes for its gradient, as large as it likes: the graph does not know
# it. A CPU writes nothing, cuDNN at most a bit per element.
_WORKSPACES = frozenset({("FusedBatchNormV3", "5")})


def activation_bytes(graph: Any, graph_def: Any) -> int | None:
    """Returns the bytes of activations of a step, where it has one device.

    Rumelhart, Hinton and Williams 1986 need them for the gradient; what a kernel needs
    while it runs, its own workspace, and gradients of activations, come on top.

    Args:
      graph: The traced step.
      graph_def: The same, as a message.

    Returns:
      None if one of them has no static shape; 0 if there is no backward pass.
    """
    origins = Origins(graph_def)
    kept: dict[tuple[str, str], int] = {}
    for operation in graph.get_operations():
        if GRADIENT_SCOPE not in operation.name:
            continue
        for tensor in operation.inputs:
            origin = origins.of(tensor)
            if origin is None or GRADIENT_SCOPE in origin[0]:
                continue
            name, place, num_bytes = origin
            op = graph.get_operation_by_name(name).type
            if op in _GIVEN or (op, place) in _WORKSPACES:
                continue
            if num_bytes is None:
                return None
            kept[name, place] = num_bytes
    return sum(kept.values())
