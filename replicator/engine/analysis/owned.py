"""Owned results: averaged gradients that only the owner of their variable keeps.

With ``sharded_update="gradients"`` (Rajbhandari et al. 2020, stage 2) the step marks
each averaged gradient with its variable. Here follow the two things that the engine
needs to know: which primary runs what the mark stands for, and whose a reduction is;
and what a step with a sharded update moves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from replicator.collectives.kind import Transfer
from replicator.engine.analysis import traffic
from replicator.engine.graph import gathers
from replicator.engine.graph.liveness import ELSEWHERE
from replicator.variables.ownership import num_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from replicator.engine.analysis.analyze import Analysis
    from replicator.engine.graph.body import Body
    from replicator.engine.graph.trace import TracedStep
    from replicator.placement.topology import Topology
    from replicator.variables.ownership import Owner, Ownership


def find(
    traced: TracedStep, ownership: Ownership, invariant: Collection[str]
) -> dict[str, Owner]:
    """By marked node, who keeps its value."""
    return {
        name: owner
        for name, variable in traced.owned.items()
        if name in invariant and (owner := ownership.owner(variable)) is not None
    }


def homes(found: Mapping[str, Owner], topology: Topology) -> dict[str, int]:
    """By marked node, the primary that runs it for all.

    Between programs there is none: a sum arrives everywhere, since rings do not
    reduce-scatter, and what is small of it is computed from that rather than sent.
    """
    if topology.num_programs > 1:
        return {}
    return {name: owner.primary for name, owner in found.items()}


def by_marker(body: Body, found: Mapping[str, Owner]) -> dict[str, Owner]:
    """By marker of a collective, who alone keeps its result."""
    sources = {node.name: [ref.node for ref in node.inputs] for node in body.nodes}
    result: dict[str, Owner] = {}
    for name, owner in found.items():
        # Between marker and mark there is at most a change of type or a factor.
        stack = list(sources.get(name, ()))
        while stack:
            source = stack.pop()
            if source in body.placeholders:
                result[source] = owner
            stack += sources.get(source, ())
    return result


class Moved(NamedTuple):
    """Bytes that go between devices in one step, all of them together."""

    reductions: int  # Operands to those who reduce, and results to those who need them.
    # New values to replicas with copies, or the gathers of stored variables.
    weights: int


def moved(analysis: Analysis, topology: Topology) -> Moved | None:
    """Counts what a step with a sharded update moves; None without one.

    Between programs that is what goes between processes, by rings; otherwise what goes
    from the device of one replica to that of another.
    """
    live = analysis.liveness
    if live is None:
        return None
    if topology.num_programs > 1:
        costs = (
            plan.collective.kind.between_workers(bucket.num_bytes, topology).num_bytes
            for plan in analysis.plans
            for bucket in plan.buckets
        )
        sent = sum(share.num_bytes for share in analysis.shares)
        return Moved(round(sum(costs)), (topology.num_programs - 1) * sent)
    # Devices that keep copies count, also where they could read one memory.
    apart = dataclasses.replace(topology, memories=topology.primaries)
    reductions = (
        transfer.num_bytes
        for transfer in traffic.transfers(analysis.plans, apart)
        if transfer.source != transfer.target
    )
    return Moved(
        round(sum(reductions)),
        round(sum(transfer.num_bytes for transfer in weights(analysis))),
    )


def explain(analysis: Analysis, topology: Topology) -> str:
    """One line with what a step moves; empty without a sharded update."""
    found = moved(analysis, topology)
    if found is None:
        return ""
    between = "workers" if topology.num_programs > 1 else "devices"
    text = (
        f"sharded update: a step moves {found.reductions} bytes by reductions and "
        f"{found.weights} bytes of weights between {between}"
    )
    if analysis.gathers:
        num_layers = len({gather.layer for gather in analysis.gathers})
        text += (
            f", in {len(analysis.gathers)} gathers of {num_layers} layers, at most "
            f"{gathers.most(analysis.gathers)} bytes of weights on a replica at a time "
            "besides its own"
        )
    return text


def weights(analysis: Analysis) -> Iterator[Transfer]:
    """New values from owners to the copies of others, and gathers of what they store.

    Between replicas of one program.
    """
    live = analysis.liveness
    if live is None:
        return
    for node, handles in live.written.items():
        writer = live.writers[node]
        for handle in handles if writer != ELSEWHERE else ():
            entry = analysis.entries[handle]
            copies = {id(copy): r for r, copy in reversed([*enumerate(entry.copies)])}
            copies.pop(id(entry.copies[writer]))
            for replica in copies.values():
                yield Transfer(writer, replica, num_bytes(entry.variable))
    for gather in analysis.gathers:
        owner = analysis.owners[gather.handle].primary
        for replica in live.emitted[gather.read]:
            if replica != owner:
                yield Transfer(owner, replica, gather.num_bytes)
