"""Liveness: which replicas need a node, if one replica updates for all.

With a sharded update (Rajbhandari et al. 2020, stage 1) a variable has an owner. A
write to it happens on the owner only; the owner's new value is then copied to the
variables of the others. So the inputs of the write are needed on the owner only: the
analysis walks the graph backwards from what every replica needs (outputs, operands of
collectives, varying nodes, effects) and from the writes, each with its owner's need.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replicator._tf import compat as _tf_compat
from replicator.core.step import at_lines, line_of
from replicator.engine.body import Body, Node, before_of, postorder, uses_of
from replicator.engine.dataflow import EffectTable
from replicator.errors import RecomputationError
from replicator.variables.kinds import Kind, declared_kind

# The primary that stands for those of all other programs.
REMOTE = -1
_NOTHING: Mapping[Any, Any] = types.MappingProxyType({})


class Liveness(NamedTuple):
    """The result of the analysis; primaries name replicas (see ``Topology``)."""

    # By invariant node, the primaries that need it.
    emitted: Mapping[str, tuple[int, ...]] = _NOTHING
    # By owned write (a node that writes an owned variable), the primary that runs it
    # for all.
    writers: Mapping[str, int] = _NOTHING
    # By such a node, the handles of the variables that it writes.
    written: Mapping[str, tuple[str, ...]] = _NOTHING
    # By such a node and a handle that it writes, the nodes that use the variable since
    # the last such node, or that one.
    earlier: Mapping[tuple[str, str], tuple[str, ...]] = _NOTHING
    # By marker of a collective, the primaries that need its result.
    results: Mapping[str, tuple[int, ...]] = _NOTHING
    # By invariant node that one primary runs for all, that primary.
    assigned_replica: Mapping[str, int] = _NOTHING


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
    everyone, effects = frozenset(primaries), EffectTable(body.library)
    written = {
        name: targets
        for name, targets in effects.written_variables(body, handles).items()
        if name in invariant
    }
    writers = {
        name: owners[handle]
        for name, targets in written.items()
        for handle in reversed(targets)  # of several, the first has the last word
        if handle in owners
    }
    # Nodes that are computed from those of one primary alone, by that.
    followed = dict(assigned_replica or {})
    for node in body.nodes:
        sources = {ref.node for ref in node.inputs}
        places = {followed[name] for name in sources if name in followed}
        # What uses variables is where they are, and what has effects has them on all.
        if (
            len(places) == 1
            and node.name in invariant
            and node.name not in written
            and sources.isdisjoint(handles)
            and effects.of(node).is_pure
        ):
            followed.setdefault(node.name, places.pop())
    needs: dict[str, set[int]] = {name: {*everyone} for name in roots}
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
    of_writers = {name: written[name] for name in writers}
    return Liveness(
        emitted=emitted,
        writers=writers,
        written=of_writers,
        earlier=_earlier(body, of_writers, handles),
        results={
            name: tuple(sorted(needs.get(name, ()))) for name in body.placeholders
        },
        assigned_replica=followed,
    )


def _earlier(
    body: Body, written: Mapping[str, tuple[str, ...]], handles: Collection[str]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Which uses of a variable must be finished before an owned write changes it."""
    # A step orders all uses of a variable around its writes, so the topological order
    # of the graph is their order.
    uses: dict[str, list[str]] = {handle: [] for handle in handles}
    earlier = {}
    for node in body.nodes:
        for handle in written.get(node.name, ()):
            earlier[node.name, handle] = tuple(uses[handle])
            uses[handle] = []
        for handle in {ref.node for ref in node.inputs} & uses.keys():
            uses[handle].append(node.name)
    return earlier


# With ``sharded_update="parameters"`` (Rajbhandari et al. 2020, stage 3) a variable is
# on its owner's device alone, and a read of it is a transfer to who computes with it: a
# *gather*. A traced step reads each variable once, early, and keeps what it has read
# until the backward pass is over. Here the reads of a step are cut and ordered, so that
# few variables are on a device at the same time:
#
# - gathers are divided into *layers*, in the order of their first use, each of at most
#   as many bytes as the largest variable;
# - a use takes what a gather of its layer or of the previous one has brought; of uses
#   that are farther apart (forward and backward pass), each has a gather;
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
    read: str  # The node that reads it.
    handle: str  # The placeholder of its handle.
    num_bytes: int  # Of the variable.
    first: int  # Depth of the first use.
    uses: tuple[str, ...]  # The nodes that compute with it.
    layer: int = 0  # Which gathers it arrives with.


class Schedule(NamedTuple):
    """A graph whose reads are gathers."""

    body: Body  # The graph.
    gathers: tuple[VariableGather, ...]  # In the order of their first use.
    # Nodes that the graph did not have, by the node that they repeat.
    added: Mapping[str, str]


def schedule_gathers(
    body: Body,
    sizes: Mapping[str, int],
    depth: Mapping[str, int],
    varying: Collection[str],
) -> Schedule:
    graph = _ReadGraph(body, depth, sizes)
    reads = [
        read
        for node in body.nodes
        if node.op == _READ and node.inputs[0].node in sizes
        if (read := graph.read(node)) and not read.uses.isdisjoint(varying)
    ]
    if not reads:
        return Schedule(body, (), {})
    largest = max(sizes[read.handle] for read in reads)
    # Each gather's read, layer and uses; by read, which gather is its last.
    made: list[tuple[_Read, int, list[str]]] = []
    last: dict[int, int] = {}
    layer, filled = -1, largest
    for at, use, position in sorted(
        (depth[use], use, position)
        for position, read in enumerate(reads)
        for use in read.uses
    ):
        read, size = reads[position], sizes[reads[position].handle]
        is_there = position in last and made[last[position]][1] >= layer - 1
        # After a write the variable has another value: no gather may come so late.
        if is_there or (position in last and at > read.latest):
            made[last[position]][2].append(use)
            continue
        if filled + size > largest:
            layer, filled = layer + 1, 0
        filled += size
        last[position] = len(made)
        made.append((read, layer, [use]))
    repeats: collections.Counter[str] = collections.Counter()
    gathers = []
    for read, its_layer, uses in made:
        name, index = read.node.name, repeats[read.node.name]
        repeats[name] += 1
        gathers.append(
            VariableGather(
                read=graph.repeat(read, index, uses) if index else name,
                handle=read.handle,
                num_bytes=sizes[read.handle],
                first=depth[uses[0]],
                uses=tuple(uses),
                layer=its_layer,
            )
        )
    graph.order(gathers)

    def before(name: str) -> Iterator[str]:
        return (other for other in before_of(graph.nodes[name]) if other in graph.nodes)

    nodes = map(graph.nodes.__getitem__, postorder(graph.nodes, before))
    body = dataclasses.replace(body, nodes=tuple(nodes))
    return Schedule(body, tuple(gathers), graph.added)


class _Read(NamedTuple):
    """A read, what passes its value on, what computes with it, and later writes."""

    node: Node
    handle: str
    family: list[Node]
    uses: frozenset[str]
    latest: int  # The depth of the first write after it.
    writes: list[str]  # Those after it.


class _ReadGraph:
    def __init__(
        self, body: Body, depth: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        self.nodes = {node.name: node for node in body.nodes}
        self.added: dict[str, str] = {}  # New nodes, by the node that they repeat.
        self._depth = depth
        self._place = {node.name: index for index, node in enumerate(body.nodes)}
        self._users = uses_of(body.nodes)
        self._written = EffectTable(body.library).written_variables(body, sizes)
        # By read, the least depth of what follows it, but for what passes it on.
        self._earliest: dict[str, int] = {}

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
        if not uses:
            return None
        handle = node.inputs[0].node
        later = [
            name
            for name, handles in self._written.items()
            if handle in handles and self._place[name] > self._place[node.name]
        ]
        self._earliest[node.name] = min(following)
        last = max(self._depth.values())
        latest = min((self._depth[name] for name in later), default=last)
        return _Read(node, handle, family, frozenset(uses), latest, later)

    def repeat(self, read: _Read, index: int, uses: Sequence[str]) -> str:
        """Adds a read for some of the uses; returns its name."""
        names = {n.name: f"{n.name}/gather_{index}" for n in read.family}

        def renamed(node: Node) -> Node:
            refs = (
                dataclasses.replace(ref, node=names.get(ref.node, ref.node))
                for ref in node.inputs
            )
            return dataclasses.replace(node, inputs=tuple(refs))

        for member in read.family:
            proto = _tf_compat.NodeDef()
            proto.CopyFrom(member.proto)
            proto.name = names[member.name]
            self.nodes[proto.name] = dataclasses.replace(
                renamed(member), name=proto.name, proto=proto
            )
            self.added[proto.name] = member.name
        for use in uses:
            self.nodes[use] = renamed(self.nodes[use])
        name = names[read.node.name]
        for write in read.writes:
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
        node = self.nodes[name]
        controls = tuple(dict.fromkeys((*node.controls, *others)))
        self.nodes[name] = dataclasses.replace(node, controls=controls)


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
        is_drawing = operation.type == "RngReadAndSkip" or _is_random(operation.type)
        if operation.type.startswith("Assign"):
            is_drawing = operation.inputs[0].op.name in states
        if not is_drawing:
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


@functools.cache
def _is_random(op: str) -> bool:
    """Whether operations of a type have a stream of their own, and so a seed."""
    known = _tf_compat.op_def(op)
    if known is None:  # the name of a function
        return False
    return known.is_stateful and any(attr.name == "seed" for attr in known.attr)
