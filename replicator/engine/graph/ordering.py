"""Ordering: keeps the order of calls, loops and branches with effects.

TensorFlow's graph optimizer treats such a node as one operation that starts when all
its inputs are available and finishes with all its outputs, so it drops a control edge
that a data edge implies. At run time, the node becomes the nodes of its body: these
start as soon as their own inputs are available, and an output can be available before
all effects. So every such node gets a control edge along each of its data edges again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_WITH_EFFECTS = frozenset({"Case", "If", "StatefulPartitionedCall", "While"})


def keep_effects_in_order(graph_def: Any) -> None:
    """Adds the control edges to a graph and to the functions of its library, in place.

    Args:
      graph_def: An optimized ``GraphDef``.
    """
    library = graph_def.library.function
    stateful = {f.signature.name for f in library if f.signature.is_stateful}
    _add_edges(graph_def.node, stateful | _WITH_EFFECTS)
    for function in library:
        _add_edges(function.node_def, stateful | _WITH_EFFECTS)


def _add_edges(nodes: Sequence[Any], with_effects: Collection[str]) -> None:
    names = {node.name for node in nodes}
    calls = {node.name for node in nodes if node.op in with_effects}
    if not calls:
        return
    for node in nodes:
        sources = [_source(text) for text in node.input if not text.startswith("^")]
        known = {text for text in node.input if text.startswith("^")}
        for source in dict.fromkeys(sources):
            # Arguments of a function are there before it starts.
            is_edge = node.name in calls or source in calls
            if is_edge and source in names and f"^{source}" not in known:
                node.input.append(f"^{source}")


def _source(text: str) -> str:
    return text.partition(":")[0]
