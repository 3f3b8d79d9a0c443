"""The graph that TensorFlow executes: after inlining, placing and partitioning.

What a step costs on many devices is seen there only: an edge of the linked graph may be
many transfers, or none.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tensorflow.python.eager import context as eager_context

if TYPE_CHECKING:
    from collections.abc import Callable

_SENDS = ("_Send", "_HostSend")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """The largest function that was started.

    Attributes:
      num_nodes: Of all partitions.
      num_controls: Transfers of nothing, for which something on another device waits.
      num_data: Transfers of values between devices.
    """

    num_nodes: int
    num_controls: int
    num_data: int


def partitions(first_call: Callable[[], Any]) -> list[Any]:
    """Returns the graph of each device of the largest function that a call starts.

    No call of the same function may be before it.
    """
    context = eager_context.context()
    context.enable_graph_collection()
    try:
        first_call()
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    found: list[Any] = max(
        (graph.partition_graphs for graph in graphs),
        key=lambda found: sum(len(part.node) for part in found),
    )
    return found


def before(graph: Any) -> Callable[[str], set[str]]:
    """Returns a function from a node of a graph to all nodes that end before it."""
    inputs = {
        node.name: [text.removeprefix("^").partition(":")[0] for text in node.input]
        for node in graph.node
    }

    def ancestors(name: str) -> set[str]:
        stack, found = list(inputs[name]), set[str]()
        while stack:
            one = stack.pop()
            if one not in found:
                found.add(one)
                stack += inputs.get(one, [])
        return found

    return ancestors


def executed(first_call: Callable[[], Any]) -> Executed:
    """Returns what a call executes; no call of the same function may be before it."""
    graphs = partitions(first_call)
    sources = [
        nodes[send.input[0].partition(":")[0]]
        for part in graphs
        for nodes in [{node.name: node for node in part.node}]
        for send in part.node
        if send.op in _SENDS
    ]
    num_controls = sum(map(_is_dummy, sources))
    return Executed(
        num_nodes=sum(len(part.node) for part in graphs),
        num_controls=num_controls,
        num_data=len(sources) - num_controls,
    )


def _is_dummy(node: Any) -> bool:
    """Whether a node is the empty constant that TensorFlow sends for a control edge."""
    if node.op != "Const" or not node.input:
        return False
    return [0] == [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]
