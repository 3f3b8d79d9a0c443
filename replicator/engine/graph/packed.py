"""Packed: a step whose local variables are parts of one vector per replica.

A *pack* (``variables/packs.py``) holds the copies of several variables. In the graph of
a step, the reads of its variables become one read and a split, and their writes one
concatenation and one write. That is the same if each variable is read only before it
is written, is written at most once, and what is written to one of them needs no write
of another. Statistics of batch norm in training are like that.

Reads may come earlier than they did, and writes later, so what waited for one of them
waits for that of the pack, and for all that the read waited for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import (
    Node,
    Ref,
    before_of,
    in_order,
    make_const,
    make_node,
    reached,
    uses_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from replicator.engine.graph.body import Body

_READ, _WRITE = "ReadVariableOp", "AssignVariableOp"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A pack, as a step uses it.

    Attributes:
      sizes: Elements of each variable, in the order of the vector.
      dtype: Their type.
      handles: By handle placeholder of the step, the index of its variable.
    """

    sizes: tuple[int, ...]
    dtype: tf.DType
    handles: dict[str, int]


def fitting(
    body: Body, handles: Collection[str], named: Collection[str]
) -> frozenset[str]:
    """Returns the handles of variables that the step uses, as a pack allows it.

    Args:
      body: The step.
      handles: Placeholders of handles.
      named: Nodes whose results are used by name, and so have to stay.
    """
    uses = uses_of(body.nodes)
    found = {
        handle
        for handle in uses.keys() & {*handles}
        if all(_is_plain(node, handle, named) for node in uses[handle])
        and sum(node.op == _WRITE for node in uses[handle]) <= 1
    }
    writes = {n.name for handle in found for n in uses[handle] if n.op == _WRITE}
    late = reached({name: [n.name for n in of] for name, of in uses.items()}, writes)
    return frozenset(
        handle for handle in found if not any(n.name in late for n in uses[handle])
    )


def pack(
    body: Body, layouts: Mapping[str, Layout]
) -> tuple[Body, dict[str, tuple[str, ...]]]:
    """Lets a step use packs.

    Args:
      body: The step.
      layouts: By new placeholder, the pack whose handle it stands for; the step uses
        its variables as ``fitting`` says.

    Returns:
      The body, and by node that it no longer has, the nodes to wait for instead.
    """
    places = {
        handle: (name, index)
        for name, layout in layouts.items()
        for handle, index in layout.handles.items()
    }
    reads: dict[str, Ref] = {}
    instead: dict[str, tuple[str, ...]] = {}
    written: dict[str, dict[int, Node]] = {name: {} for name in layouts}
    for node in body.nodes:
        place = places.get(node.inputs[0].node) if node.inputs else None
        if place is None:
            continue
        name, index = place
        if node.op == _WRITE:
            written[name][index] = node
            instead[node.name] = (f"{name}/write",)
        else:
            reads[node.name] = Ref(node=f"{name}/parts", port=f"output:{index}")
            instead[node.name] = (f"{name}/read", *node.controls)
    edges = _Edges(reads, instead, written, layouts)
    nodes = [made for name in layouts for made in edges.first(name)]
    last = {
        next(reversed(of.values())).name: name for name, of in written.items() if of
    }
    for node in body.nodes:
        if node.name in last:
            nodes += edges.last(last[node.name])
        elif node.name not in instead:
            nodes.append(edges.moved(node))
    return (
        dataclasses.replace(
            body,
            nodes=tuple(in_order(nodes)),
            placeholders=body.placeholders | layouts.keys(),
        ),
        {name: edges.resolved([name]) for name in instead},
    )


class _Edges:
    """The inputs of nodes, once variables are parts of packs."""

    def __init__(
        self,
        reads: Mapping[str, Ref],
        instead: Mapping[str, tuple[str, ...]],
        written: Mapping[str, Mapping[int, Node]],
        layouts: Mapping[str, Layout],
    ) -> None:
        self._reads = reads
        self._instead = instead
        self._written = written
        self._layouts = layouts

    def first(self, name: str) -> list[Node]:
        """The read of a pack, and its parts."""
        layout = self._layouts[name]
        value = Ref(node=f"{name}/read", port="value:0")
        sizes = np.asarray(layout.sizes, np.int32)
        parts = {
            "T": layout.dtype,
            "Tlen": tf.int32,
            "num_split": len(layout.sizes),
        }
        inputs = (value, *(_const(name, of) for of in ("sizes", "axis")))
        return [
            _node(value.node, _READ, [_handle(name)], {"dtype": layout.dtype}),
            _made(make_const(f"{name}/sizes", sizes, "")),
            _made(make_const(f"{name}/axis", 0, "")),
            _node(f"{name}/parts", "SplitV", inputs, parts),
        ]

    def last(self, name: str) -> list[Node]:
        """The write of a pack: new values, and what was read of all others."""
        layout = self._layouts[name]
        written = {i: self.moved(node) for i, node in self._written[name].items()}
        values = [
            written[index].inputs[1]
            if index in written
            else Ref(node=f"{name}/parts", port=f"output:{index}")
            for index in range(len(layout.sizes))
        ]
        whole = Ref(node=f"{name}/whole", port="output:0")
        waits = [f"{name}/read", *(c for n in written.values() for c in n.controls)]
        types = {"T": layout.dtype, "Tidx": tf.int32, "N": len(values)}
        return [
            _node(whole.node, "ConcatV2", [*values, _const(name, "axis")], types),
            _node(
                f"{name}/write",
                _WRITE,
                [_handle(name), whole],
                {"dtype": layout.dtype},
                tuple(dict.fromkeys(waits)),
            ),
        ]

    def moved(self, node: Node) -> Node:
        """A node that takes parts, and waits for packs."""
        taken = [ref.node for ref in node.inputs if ref.node in self._reads]
        # What reads waited for; their values are there from the beginning.
        of_reads = [wait for name in taken for wait in self._instead[name][1:]]
        waits = self.resolved([*node.controls, *of_reads])
        inputs = tuple(self._reads.get(ref.node, ref) for ref in node.inputs)
        if waits == node.controls and inputs == node.inputs:
            return node
        return dataclasses.replace(node, inputs=inputs, controls=waits)

    def resolved(self, names: Iterable[str]) -> tuple[str, ...]:
        """What to wait for in place of nodes, some of which are gone."""
        found: dict[str, None] = {}
        for name in names:
            if name in self._instead:
                first, *more = self._instead[name]
                found |= dict.fromkeys([first, *self.resolved(more)])
            else:
                found[name] = None
        return tuple(found)


def _is_plain(node: Node, handle: str, named: Collection[str]) -> bool:
    """Whether a node reads or writes a variable, and does nothing else with it."""
    is_first = bool(node.inputs) and node.inputs[0].node == handle
    is_only = before_of(node).count(handle) == 1
    is_read = node.op == _READ and node.name not in named
    return is_first and is_only and (is_read or node.op == _WRITE)


def _handle(name: str) -> Ref:
    return Ref(node=name, port="output:0")


def _const(name: str, of: str) -> Ref:
    return Ref(node=f"{name}/{of}", port="output:0")


def _node(
    name: str,
    op: str,
    inputs: Sequence[Ref],
    attrs: Mapping[str, Any],
    controls: Sequence[str] = (),
) -> Node:
    return _made(make_node(name, op, [], "", attrs), inputs, controls)


def _made(proto: Any, inputs: Sequence[Ref] = (), controls: Sequence[str] = ()) -> Node:
    return Node(
        name=proto.name,
        op=proto.op,
        inputs=tuple(inputs),
        controls=tuple(controls),
        proto=proto,
    )
