"""Liveness: which replicas need a node, if one replica updates for all.

With a sharded update (Rajbhandari et al. 2020, stage 1) a variable has an owner. A
write to it happens on the owner only; the owner's new value is then copied to the
variables of the others. So the inputs of the write are needed on the owner only: the
analysis walks the graph backwards from what every replica needs (outputs, operands of
collectives, varying nodes, effects) and from the writes, each with its owner's need.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replicator.engine.graph.body import before_of
from replicator.engine.graph.effects import READ_OPS, EffectTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from replicator.engine.graph.body import Body, Node


# The primary that stands for those of all other programs.
ELSEWHERE = -1


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
    homes: dict[str, int] = dataclasses.field(default_factory=dict)


def analyze(
    body: Body,
    *,
    invariant: Collection[str],
    primaries: Iterable[int],
    handles: Collection[str],
    owners: Mapping[str, int],
    roots: Iterable[str],
    homes: Mapping[str, int] | None = None,
) -> Liveness:
    """Finds what each primary has to emit."""
    everyone = frozenset(primaries)
    written = _writes(body, set(invariant), set(handles))
    writers = {}
    for name, targets in written.items():
        owned = [owners[handle] for handle in targets if handle in owners]
        if owned:
            writers[name] = owned[0]
    followed = _follow(body, homes or {}, set(invariant), written, set(handles))
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
        homes=followed,
    )


def _follow(
    body: Body,
    homes: Mapping[str, int],
    invariant: set[str],
    written: Collection[str],
    handles: set[str],
) -> dict[str, int]:
    """Adds the nodes that are computed from those of one home alone."""
    if not homes:
        return {}
    effects = EffectTable(body.library)
    found = dict(homes)
    for node in body.nodes:
        if node.name in found or node.name in written or node.name not in invariant:
            continue
        sources = [ref.node for ref in node.inputs]
        places = {found[name] for name in sources if name in found}
        # What uses variables is where they are, and what has effects has them on all.
        if len(places) != 1 or not handles.isdisjoint(sources):
            continue
        if effects.of(node.proto, len(sources)).is_pure:
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


def _writes(
    body: Body, invariant: set[str], handles: set[str]
) -> dict[str, tuple[str, ...]]:
    """The handles of variables that each invariant node writes."""
    effects = EffectTable(body.library)
    alias: dict[str, str] = {handle: handle for handle in handles}
    written = {}
    for node in body.nodes:
        if node.op == "Identity" and node.inputs[0].node in alias:
            alias[node.name] = alias[node.inputs[0].node]
        if node.name in invariant and node.op not in READ_OPS:
            targets = _targets(node, effects, alias)
            if targets:
                written[node.name] = targets
    return written


def _targets(
    node: Node, effects: EffectTable, alias: Mapping[str, str]
) -> tuple[str, ...]:
    positions = effects.of(node.proto, len(node.inputs)).writes
    found = {
        alias[node.inputs[position].node]: None
        for position in sorted(positions)
        if position < len(node.inputs) and node.inputs[position].node in alias
    }
    return tuple(found)
