"""Owned results: averaged gradients that only the owner of their variable keeps.

With ``sharded_update="gradients"`` (Rajbhandari et al. 2020, stage 2) the step marks
each averaged gradient with its variable. Here follow the two things that the engine
needs to know: which primary runs what the mark stands for, and whose a reduction is;
and what a step with a sharded update moves.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from replicator.variables.ownership import num_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from replicator.engine.analysis.analyze import Analysis
    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.engine.graph.body import Body
    from replicator.engine.graph.liveness import Liveness
    from replicator.engine.graph.trace import TracedStep
    from replicator.placement.topology import Topology
    from replicator.variables.ownership import Owner, Ownership


def find(
    traced: TracedStep, ownership: Ownership, invariant: Collection[str]
) -> dict[str, Owner]:
    """By marked node, who keeps its value.

    Args:
      traced: The step.
      ownership: Of its variables.
      invariant: Nodes with the same value on every replica: of others, each replica
        has its own.
    """
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
    """Bytes that go between devices in one step, all of them together.

    Attributes:
      reductions: Operands to those who reduce, and results to those who need them.
      weights: New values to replicas with copies, or the gathers of stored variables.
    """

    reductions: int
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
    return Moved(
        round(sum(_transferred(analysis.plans, topology))),
        sum(_refreshed(analysis, live)) + sum(_gathered(analysis, live)),
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
    gathers = analysis.gathers
    if gathers:
        sizes: dict[int, int] = {}
        for gather in gathers:
            sizes[gather.layer] = sizes.get(gather.layer, 0) + gather.num_bytes
        most = max(size + sizes.get(layer + 1, 0) for layer, size in sizes.items())
        text += (
            f", in {len(gathers)} gathers of {len(sizes)} layers, at most {most} bytes "
            "of weights on a replica at a time besides its own"
        )
    return text


def _transferred(
    plans: Iterable[CollectivePlan], topology: Topology
) -> Iterator[float]:
    # Devices that keep copies count, also where they could read one memory.
    apart = dataclasses.replace(topology, memories=topology.primaries)
    for plan in plans:
        for bucket in plan.buckets:
            for transfer in plan.collective.kind.transfers(
                bucket.num_bytes, bucket.owner, apart
            ):
                is_back = transfer.target != bucket.owner
                is_sent = transfer.source != transfer.target
                if is_sent and not (bucket.is_for_owner and is_back):
                    yield transfer.num_bytes


def _refreshed(analysis: Analysis, live: Liveness) -> Iterator[int]:
    """The copies of others that get the result of an owned write."""
    for node, handles in live.written.items():
        writer = live.writers[node]
        for handle in handles:
            entry = analysis.entries[handle]
            copies = {id(c): c for c in entry.copies if c is not entry.copies[writer]}
            yield len(copies) * num_bytes(entry.variable)


def _gathered(analysis: Analysis, live: Liveness) -> Iterator[int]:
    """The replicas that need a variable which another one stores."""
    for gather in analysis.gathers:
        owner = analysis.owners[gather.handle]
        needed = [p for p in live.emitted[gather.read] if p != owner.primary]
        yield len(needed) * gather.num_bytes
