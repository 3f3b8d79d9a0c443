"""Gathers: when a replica has the value of a variable that another one stores.

With ``sharded_update="parameters"`` (Rajbhandari et al. 2020, stage 3) a variable is on
its owner's device alone, and a read of it is a transfer to who computes with it: a
*gather*. A traced step reads each variable once, early, and keeps what it has read
until the backward pass is over. Here the reads of a step are cut and ordered, so that
few variables are on a device at the same time:

- uses of a variable that are far apart (forward and backward pass) get a gather each;
- gathers are ordered by their first use and divided into *layers*, each of at most as
  many bytes as the largest variable;
- those of a layer wait for the uses of the layer before the previous one. So while one
  layer computes, the next one arrives, and no other is there.

What is far apart, first and late follows from the depth of nodes (``body.depths``).
A new edge leads from lesser to greater depth, as all others do, so there is no cycle.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.engine.graph.body import in_order, uses_of
from replicator.engine.graph.effects import EffectTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node

_READ = "ReadVariableOp"
# They hold what they pass on: of a variable that is cast, each gather has its own.
_PASSES_ON = frozenset({"Cast", "Identity"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gather:
    """One transfer of a variable to those who use it."""

    read: str  # The node that reads it.
    handle: str  # The placeholder of its handle.
    num_bytes: int  # Of the variable.
    first: int  # Depth of the first use.
    uses: tuple[str, ...]  # The nodes that compute with it.
    layer: int = 0  # Which gathers it arrives with.


def most(gathers: Iterable[Gather]) -> int:
    """Bytes of the two layers in a row that have most: what a replica has at a time."""
    sizes: dict[int, int] = {}
    for gather in gathers:
        sizes[gather.layer] = sizes.get(gather.layer, 0) + gather.num_bytes
    both = (size + sizes.get(layer + 1, 0) for layer, size in sizes.items())
    return max(both, default=0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A graph whose reads are gathers."""

    body: Body  # The graph.
    gathers: tuple[Gather, ...]  # In the order of their first use.
    # Nodes that the graph did not have, by the node that they repeat.
    added: dict[str, str]


def schedule(
    body: Body,
    sizes: Mapping[str, int],
    depth: Mapping[str, int],
    varying: Collection[str],
) -> Schedule:
    """Cuts and orders the reads of variables."""
    graph = _ReadGraph(body, depth, sizes)
    reads = [
        read
        for node in body.nodes
        if node.op == _READ and node.inputs[0].node in sizes
        if (read := graph.read(node)) and not read.uses.isdisjoint(varying)
    ]
    if not reads:
        return Schedule(body=body, gathers=(), added={})
    largest = max(sizes[read.handle] for read in reads)
    gathers = []
    for read, parts in _cut(reads, sizes, depth, largest):
        for index, uses in enumerate(parts):
            name = graph.repeat(read, index, uses) if index else read.node.name
            gathers.append(
                Gather(
                    read=name,
                    handle=read.handle,
                    num_bytes=sizes[read.handle],
                    first=min(depth[use] for use in uses),
                    uses=uses,
                )
            )
    in_layers = _layers(gathers, largest)
    graph.order(in_layers)
    return Schedule(body=graph.made(), gathers=tuple(in_layers), added=graph.added)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A read, what passes its value on, what computes with it, and later writes."""

    node: Node
    handle: str
    family: tuple[Node, ...]
    uses: frozenset[str]
    latest: int


def _cut(
    reads: Sequence[_Read],
    sizes: Mapping[str, int],
    depth: Mapping[str, int],
    largest: int,
) -> Iterator[tuple[_Read, list[tuple[str, ...]]]]:
    """The uses of each read, by gather."""
    events = sorted(
        (depth[use], use, place)
        for place, read in enumerate(reads)
        for use in read.uses
    )
    parts: list[list[list[str]]] = [[] for _ in reads]
    since: list[set[int]] = [set() for _ in reads]
    for at, use, place in events:
        read = reads[place]
        others = sum(sizes[reads[other].handle] for other in since[place])
        # After a write the variable has another value: no gather may come so late.
        if not parts[place] or (others > largest and at <= read.latest):
            parts[place].append([])
        parts[place][-1].append(use)
        since[place] = set()
        for other, seen in enumerate(since):
            if other != place:
                seen.add(place)
    for read, found in zip(reads, parts, strict=True):
        yield read, [tuple(uses) for uses in found]


def _layers(gathers: Iterable[Gather], largest: int) -> list[Gather]:
    """Divides gathers, in the order of their first use."""
    found: list[Gather] = []
    layer, filled = -1, largest
    for gather in sorted(gathers, key=lambda g: (g.first, g.read)):
        if filled + gather.num_bytes > largest:
            layer, filled = layer + 1, 0
        filled += gather.num_bytes
        found.append(dataclasses.replace(gather, layer=layer))
    return found


class _ReadGraph:
    """A body that gets more nodes and edges.

    Attributes:
      added: New nodes, by the node that they repeat.
    """

    def __init__(
        self, body: Body, depth: Mapping[str, int], handles: Collection[str]
    ) -> None:
        self._body = body
        self._depth = depth
        self._nodes = {node.name: node for node in body.nodes}
        self._place = {node.name: place for place, node in enumerate(body.nodes)}
        self._users = uses_of(body.nodes)
        self._writes = _writes(body, handles)
        self.added: dict[str, str] = {}

    def read(self, node: Node) -> _Read | None:
        """What is known of a read; None if nothing uses its value."""
        family, uses = [node], []
        for member in family:
            for user in self._users.get(member.name, ()):
                if all(ref.node != member.name for ref in user.inputs):
                    continue
                if user.op in _PASSES_ON and not user.controls:
                    family.append(user)
                else:
                    uses.append(user.name)
        handle = node.inputs[0].node
        later = [
            self._depth[name]
            for name in self._writes.get(handle, ())
            if self._place[name] > self._place[node.name]
        ]
        if not uses:
            return None
        return _Read(
            node=node,
            handle=handle,
            family=tuple(family),
            uses=frozenset(uses),
            latest=min(later, default=max(self._depth.values())),
        )

    def repeat(self, read: _Read, index: int, uses: Sequence[str]) -> str:
        """Adds a read for some of the uses; returns its name."""
        names = {n.name: f"{n.name}/gather_{index}" for n in read.family}
        for member in read.family:
            inputs = [
                dataclasses.replace(ref, node=names.get(ref.node, ref.node))
                for ref in member.inputs
            ]
            proto = _tf_compat.NodeDef()
            proto.CopyFrom(member.proto)
            proto.name = names[member.name]
            self._nodes[proto.name] = dataclasses.replace(
                member, name=proto.name, inputs=tuple(inputs), proto=proto
            )
            self.added[proto.name] = member.name
        for use in uses:
            node = self._nodes[use]
            self._nodes[use] = dataclasses.replace(
                node,
                inputs=tuple(
                    dataclasses.replace(ref, node=names.get(ref.node, ref.node))
                    for ref in node.inputs
                ),
            )
        name = names[read.node.name]
        for write in self._writes.get(read.handle, ()):
            if self._place[write] > self._place[read.node.name]:
                self._wait(write, [name])
        return name

    def order(self, gathers: Sequence[Gather]) -> None:
        """Lets the gathers of each layer wait for earlier uses."""
        layers: dict[int, list[Gather]] = {}
        for gather in gathers:
            layers.setdefault(gather.layer, []).append(gather)
        for layer, members in layers.items():
            begin = members[0].first
            waits = {
                use: None
                for gather in layers.get(layer - 2, ())
                for use in gather.uses
                if self._depth[use] < begin
            }
            for gather in members:
                if self._earliest(gather.read) >= begin:
                    self._wait(gather.read, waits)

    def _earliest(self, read: str) -> float:
        """The least depth of what follows a read, but for what passes it on."""
        if read in self.added:
            return float("inf")
        family, depths = [read], []
        for member in family:
            for user in self._users.get(member, ()):
                is_passing = user.op in _PASSES_ON and not user.controls
                if is_passing and user.inputs[0].node == member:
                    family.append(user.name)
                else:
                    depths.append(self._depth[user.name])
        return min(depths)

    def _wait(self, name: str, others: Iterable[str]) -> None:
        node = self._nodes[name]
        controls = tuple(dict.fromkeys((*node.controls, *others)))
        self._nodes[name] = dataclasses.replace(node, controls=controls)

    def made(self) -> Body:
        """The body with all nodes, in topological order."""
        nodes = tuple(in_order(self._nodes.values()))
        return dataclasses.replace(self._body, nodes=nodes)


def _writes(body: Body, handles: Collection[str]) -> dict[str, list[str]]:
    """The nodes that may write each variable."""
    effects: Any = EffectTable(body.library)
    found: dict[str, list[str]] = {}
    for node in body.nodes:
        touched = [p for p, ref in enumerate(node.inputs) if ref.node in handles]
        if not touched:
            continue
        written = effects.of(node.proto, len(node.inputs)).writes
        for position in written.intersection(touched):
            found.setdefault(node.inputs[position].node, []).append(node.name)
    return found
