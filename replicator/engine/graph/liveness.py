"""Liveness: which replicas need a node, if one replica updates for all.

With a sharded update (Rajbhandari et al. 2020, stage 1) a variable has an owner. A
write to it happens on the owner only; the owner's new value is then copied to the
variables of the others. So the inputs of the write are needed on the owner only: the
analysis walks the graph backwards from what every replica needs (outputs, operands of
collectives, varying nodes, effects) and from the writes, each with its owner's need.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.core.step import at_lines, line_of
from replicator.engine.graph.body import before_of, in_order, uses_of
from replicator.engine.graph.dataflow import EffectTable, written_variables
from replicator.errors import RecomputationError
from replicator.variables.kinds import Kind, declared_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node


# The primary that stands for those of all other programs.
REMOTE = -1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Liveness:
    """The result of the analysis; primaries name replicas (see ``Topology``)."""

    # By invariant node, the primaries that need it.
    emitted: dict[str, tuple[int, ...]]
    # By owned write (a node that writes an owned variable), the primary that runs it
    # for all.
    writers: dict[str, int]
    # By such a node, the handles of the variables that it writes.
    written: dict[str, tuple[str, ...]]
    # By such a node and a handle that it writes, the nodes that use the variable since
    # the last such node, or that one.
    earlier: dict[tuple[str, str], tuple[str, ...]]
    # By marker of a collective, the primaries that need its result.
    results: dict[str, tuple[int, ...]]
    # By invariant node that one primary runs for all, that primary.
    assigned_replica: dict[str, int] = dataclasses.field(default_factory=dict)


def analyze(
    body: Body,
    *,
    invariant: Collection[str],
    primaries: Iterable[int],
    handles: Collection[str],
    owners: Mapping[str, int],
    roots: Iterable[str],
    assigned_replica: Mapping[str, int] | None = None,
) -> Liveness:
    """Finds what each primary has to emit."""
    everyone = frozenset(primaries)
    written = {
        name: targets
        for name, targets in written_variables(body, handles).items()
        if name in invariant
    }
    writers = {}
    for name, targets in written.items():
        owned = [owners[handle] for handle in targets if handle in owners]
        if owned:
            writers[name] = owned[0]
    followed = _follow(
        body, assigned_replica or {}, set(invariant), written, set(handles)
    )
    needs: dict[str, set[int]] = {}
    for name in roots:
        needs.setdefault(name, set()).update(everyone)
    emitted = {}
    for node in reversed(body.nodes):
        if node.name in writers:
            where: Collection[int] = (writers[node.name],)
        elif node.name in invariant:
            where = needs.get(node.name, set())
            if where and node.name in followed:
                where = {followed[node.name]}
        else:
            where = everyone
        if node.name in invariant:
            emitted[node.name] = tuple(sorted(where))
        for name in before_of(node):
            needs.setdefault(name, set()).update(where)
    return Liveness(
        emitted=emitted,
        writers=writers,
        written={name: written[name] for name in writers},
        earlier=_earlier(body, writers, written, set(handles)),
        results={
            name: tuple(sorted(needs.get(name, ()))) for name in body.placeholders
        },
        assigned_replica=followed,
    )


def _follow(
    body: Body,
    assigned_replica: Mapping[str, int],
    invariant: set[str],
    written: Collection[str],
    handles: set[str],
) -> dict[str, int]:
    """Adds the nodes that are computed from those of one home alone."""
    if not assigned_replica:
        return {}
    effects = EffectTable(body.library)
    found = dict(assigned_replica)
    for node in body.nodes:
        if node.name in found or node.name in written or node.name not in invariant:
            continue
        sources = [ref.node for ref in node.inputs]
        places = {found[name] for name in sources if name in found}
        # What uses variables is where they are, and what has effects has them on all.
        if len(places) != 1 or not handles.isdisjoint(sources):
            continue
        if effects.of(node).is_pure:
            found[node.name] = places.pop()
    return found


def _earlier(
    body: Body,
    writers: Collection[str],
    written: Mapping[str, tuple[str, ...]],
    handles: set[str],
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Which uses of a variable must be finished before an owned write changes it.

    A step orders all uses of a variable around its writes, so the topological order of
    the graph is their order.
    """
    uses: dict[str, list[str]] = {handle: [] for handle in handles}
    found = {}
    for node in body.nodes:
        if node.name in writers:
            for handle in written[node.name]:
                found[node.name, handle] = tuple(uses[handle])
                uses[handle] = []
        for handle in {ref.node for ref in node.inputs} & handles:
            uses[handle].append(node.name)
    return found


# With ``sharded_update="parameters"`` (Rajbhandari et al. 2020, stage 3) a variable is
# on its owner's device alone, and a read of it is a transfer to who computes with it: a
# *gather*. A traced step reads each variable once, early, and keeps what it has read
# until the backward pass is over. Here the reads of a step are cut and ordered, so that
# few variables are on a device at the same time:
#
# - uses of a variable that are far apart (forward and backward pass) get a gather each;
# - gathers are ordered by their first use and divided into *layers*, each of at most as
#   many bytes as the largest variable;
# - those of a layer wait for the uses of the layer before the previous one. So while
#   one layer computes, the next one arrives, and no other is there.
#
# What is far apart, first and late follows from the depth of nodes (``body.depths``).
# A new edge leads from lesser to greater depth, as all others do, so there is no cycle.

_READ = "ReadVariableOp"
# They hold what they pass on: of a variable that is cast, each gather has its own.
_PASSES_ON = frozenset({"Cast", "Identity"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VariableGather:
    """One transfer of a variable to those who use it."""

    read: str  # The node that reads it.
    handle: str  # The placeholder of its handle.
    num_bytes: int  # Of the variable.
    first: int  # Depth of the first use.
    uses: tuple[str, ...]  # The nodes that compute with it.
    layer: int = 0  # Which gathers it arrives with.


def most_gathered_bytes(gathers: Iterable[VariableGather]) -> int:
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
    gathers: tuple[VariableGather, ...]  # In the order of their first use.
    # Nodes that the graph did not have, by the node that they repeat.
    added: dict[str, str]


def schedule_gathers(
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
                VariableGather(
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


def _layers(gathers: Iterable[VariableGather], largest: int) -> list[VariableGather]:
    """Divides gathers, in the order of their first use."""
    found: list[VariableGather] = []
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
        self._writes: dict[str, list[str]] = {}
        for name, written in written_variables(body, handles).items():
            for handle in written:
                self._writes.setdefault(handle, []).append(name)
        # By read, the least depth of what follows it, but for what passes it on.
        self._earliest: dict[str, int] = {}
        self.added: dict[str, str] = {}

    def read(self, node: Node) -> _Read | None:
        """What is known of a read; None if nothing uses its value."""
        family, uses, following = [node], [], []
        for member in family:
            for user in self._users.get(member.name, ()):
                is_use = any(ref.node == member.name for ref in user.inputs)
                if is_use and user.op in _PASSES_ON and not user.controls:
                    family.append(user)
                    continue
                following.append(self._depth[user.name])
                if is_use:
                    uses.append(user.name)
        handle = node.inputs[0].node
        later = [
            self._depth[name]
            for name in self._writes.get(handle, ())
            if self._place[name] > self._place[node.name]
        ]
        if not uses:
            return None
        self._earliest[node.name] = min(following)
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

    def order(self, gathers: Sequence[VariableGather]) -> None:
        """Lets the gathers of each layer wait for earlier uses."""
        layers: dict[int, list[VariableGather]] = {}
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
                if self._earliest.get(gather.read, begin) >= begin:
                    self._wait(gather.read, waits)

    def _wait(self, name: str, others: Iterable[str]) -> None:
        node = self._nodes[name]
        controls = tuple(dict.fromkeys((*node.controls, *others)))
        self._nodes[name] = dataclasses.replace(node, controls=controls)

    def made(self) -> Body:
        """The body with all nodes, in topological order."""
        nodes = tuple(in_order(self._nodes.values()))
        return dataclasses.replace(self._body, nodes=nodes)


# The backward pass runs the function again, and draws again: other numbers than those
# of which the forward pass made the loss, so that the gradient is that of another
# function.

_FUNCTION = "inner_recompute_grad"


def check_recomputed(graph: Any, variables: Mapping[str, Any]) -> None:
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
                f"backward pass, and it draws random numbers{at_lines([line])}, which "
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
