"""Ordering: keeps the order of calls, loops and branches with effects.

TensorFlow's graph optimizer treats such a node as one operation that starts when all
its inputs are available and finishes with all its outputs, so it drops a control edge
that a data edge implies. At run time, the node becomes the nodes of its body: these
start as soon as their own inputs are available, and an output can be available before
all effects. So every such node gets a control edge along each of its data edges again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.engine.graph.body import producer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_CALL = "StatefulPartitionedCall"
_WITH_EFFECTS = frozenset({"Case", "If", "StatefulPartitionedCall", "While"})


def keep_effects_in_order(graph_def: Any) -> None:
    """Adds the control edges to a graph and the functions of its library, in place."""
    library = graph_def.library.function
    stateful = {f.signature.name for f in library if f.signature.is_stateful}
    _add_edges(graph_def.node, stateful | _WITH_EFFECTS)
    for function in library:
        _add_edges(function.node_def, stateful | _WITH_EFFECTS)


def keep_waits_of_calls(graph_def: Any) -> None:
    """Lets calls wait through a node of their own, in place, before the optimizer.

    It drops a control edge from what an argument is computed from, and then puts the
    function's nodes in place of the call: those that do not use this argument would no
    longer wait. An assignment then overtakes a read whose value the call is given.
    """
    library = graph_def.library.function
    names = {f.signature.name for f in library if f.signature.is_stateful} | {_CALL}
    _add_waits(graph_def.node, names)
    for function in library:
        _add_waits(function.node_def, names)


def _add_waits(nodes: Any, calls: Collection[str]) -> None:
    for node in [node for node in nodes if node.op in calls]:
        waits = [text for text in node.input if text.startswith("^")]
        if waits:
            data = [text for text in node.input if not text.startswith("^")]
            wait = nodes.add(
                name=f"{node.name}/replicator_wait", op="NoOp", device=node.device
            )
            wait.input.extend(waits)
            del node.input[:]
            node.input.extend([*data, f"^{wait.name}"])


def _add_edges(nodes: Sequence[Any], with_effects: Collection[str]) -> None:
    names = {node.name for node in nodes}
    calls = {node.name for node in nodes if node.op in with_effects}
    if not calls:
        return
    for node in nodes:
        sources = [producer(text) for text in node.input if not text.startswith("^")]
        known = {text for text in node.input if text.startswith("^")}
        for source in dict.fromkeys(sources):
            # Arguments of a function are there before it starts.
            is_edge = node.name in calls or source in calls
            if is_edge and source in names and f"^{source}" not in known:
                node.input.append(f"^{source}")
