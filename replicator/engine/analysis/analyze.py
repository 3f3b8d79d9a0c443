"""Analysis: all facts about a step before its replicas are created.

The step is traced and its graph optimized, once for all replicas. From the graph follow
the kinds of its variables, what each replica has to compute, how the collectives are
carried out, and what owners of variables send to the programs of other workers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.analysis import divergence, owned, placement, plan, shares
from replicator.engine.graph import body as body_lib
from replicator.engine.graph import invariance, liveness
from replicator.engine.graph.effects import READ_OPS
from replicator.engine.graph.gathers import schedule
from replicator.engine.graph.optimize import optimize, own_functions
from replicator.engine.graph.rewriters import Rewriters
from replicator.engine.graph.trace import trace
from replicator.step import creation
from replicator.variables.kinds import Kind
from replicator.variables.ownership import num_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.engine.analysis.shares import Share
    from replicator.engine.graph.body import Body
    from replicator.engine.graph.gathers import Gather
    from replicator.engine.graph.invariance import Invariance
    from replicator.engine.graph.liveness import Liveness
    from replicator.engine.graph.trace import TracedStep
    from replicator.placement.topology import Topology
    from replicator.variables.ownership import Owner, Ownership
    from replicator.variables.table import Entry, VariableTable


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The facts about a step."""

    traced: TracedStep  # The step as it was traced.
    body: Body  # Its optimized graph.
    invariance: Invariance  # What has the same value on every replica.
    entries: dict[str, Entry]  # The variables it uses, by handle placeholder.
    # Who emits what, where variables have owners; None where all emit all.
    liveness: Liveness | None
    plans: tuple[CollectivePlan, ...]  # How each collective is carried out.
    # What owners in all programs send to the others, in the order of the graph.
    shares: tuple[Share, ...]
    # By handle, who updates a variable that has an owner.
    owners: dict[str, Owner] = dataclasses.field(default_factory=dict)
    gathers: tuple[Gather, ...] = ()  # Transfers of variables that their owners store.

    def description(self) -> dict[str, Any]:
        """What concurrent programs must have in common, as JSON."""
        return {
            "inputs": [dtype.name for dtype in self.traced.argument_dtypes],
            "collectives": [
                {
                    "call": str(c.kind),
                    "tensors": [
                        f"{dtype.name}{shape}"
                        for dtype, shape in zip(c.dtypes, c.shapes, strict=True)
                    ],
                    "sent as": [c.kind.sent_dtype(dtype).name for dtype in c.dtypes],
                    "sent": "conditionally" if c.needed_if else "always",
                    "algorithm": p.algorithm,
                    "buckets": [list(b.positions) for b in p.buckets],
                }
                for p, c in ((p, p.collective) for p in self.plans)
            ],
            "variables": [
                f"{e.kind.value} {e.variable.dtype.name}{e.variable.shape}"
                for e in self.entries.values()
            ],
            "shares": [
                f"{share.dtype.name}{share.shape} of worker {share.source}"
                for share in self.shares
            ],
        }


def analyze(
    step_fn: Callable[..., Any],
    specs: Sequence[Any],
    name: str,
    topology: Topology,
    table: VariableTable,
    *,
    is_in_group: bool = False,
) -> Analysis:
    """Traces a step and finds out what its program needs."""

    def trace_step() -> TracedStep:
        counts = topology.num_replicas, topology.num_logical_devices
        return creation.in_first_trace(lambda: trace(step_fn, specs, *counts))

    traced = trace_step()
    if table.ownership.settle():  # the trace has variables where they were
        traced = trace_step()
    body = to_body(traced, name, topology)
    found = _find_invariance(traced, body, topology, table)
    gathers: tuple[Gather, ...] = ()
    if sizes := _stored(traced, table.ownership, topology):
        # What is sent together waits for all operands of the call.
        joined = _depths(traced, body, are_joined=True)
        made = schedule(body, sizes, joined, _varying(body, found))
        body, gathers = made.body, made.gathers
        nodes = found.nodes.union(made.added)
        found = dataclasses.replace(found, nodes=nodes)
    entries = _require_variables(traced, found, topology, table)
    owners = _owners(traced, table.ownership)
    kept = owned.find(traced, table.ownership, found.nodes)
    live = _find_live(traced, body, found, owners, kept, topology)
    if live is not None and topology.num_programs > 1:
        _check_slots(traced, body, live, owners, table.ownership, topology)
    return Analysis(
        traced=traced,
        body=body,
        invariance=found,
        entries=entries,
        liveness=live,
        owners=owners,
        gathers=gathers,
        plans=plan.make_plan(
            traced.collectives,
            topology,
            _depths(traced, body) if topology.orders_transfers else None,
            # Programs side by side need other results, but make the same plan.
            {} if live is None or is_in_group else live.results,
            placement.of_operands(traced, topology),
            {} if live is None else owned.by_marker(body, kept),
        ),
        shares=(
            _find_shares(traced, body, live, owners, table.ownership)
            if live is not None and is_in_group
            else ()
        ),
    )


def to_body(traced: TracedStep, name: str, topology: Topology) -> Body:
    """Places and optimizes the graph of a traced step."""
    placement.place(traced, topology)
    rewriters = Rewriters()
    optimized = optimize(traced, topology, rewriters)
    own_functions(optimized, name)
    body = body_lib.from_graph_def(optimized)
    return dataclasses.replace(body, notes=tuple(rewriters.notes.values()))


def _find_invariance(
    traced: TracedStep, body: Body, topology: Topology, table: VariableTable
) -> Invariance:
    # A kind says whether replicas get the same: taken for granted, copies of variables
    # would differ while every check says that they are in sync.
    results = {m for c in traced.collectives if c.kind.is_invariant for m in c.markers}
    tensors = {
        name for name, outer in traced.captures.items() if outer.dtype != tf.resource
    }
    local = {
        name
        for name, variable in traced.variables.items()
        if table.kind(variable) is not Kind.MIRRORED
    }
    found = invariance.analyze(
        body,
        invariant_inputs=results | tensors,
        handles=set(traced.variables),
        local=local,
    )
    if topology.num_replicas > 1:
        invariance.check_required(found, traced.required)  # which says more
        invariance.check_trainable(found, traced.variables, traced.lines)
        divergence.check(traced, body, found.local)
    return found


def _require_variables(
    traced: TracedStep, found: Invariance, topology: Topology, table: VariableTable
) -> dict[str, Entry]:
    entries = {}
    for name, variable in traced.variables.items():
        kind = table.kind(variable)
        if name in found.local and kind is Kind.MIRRORED and topology.num_replicas > 1:
            kind = Kind.LOCAL
        entries[name] = table.require(variable, kind)
    return entries


def _owners(traced: TracedStep, ownership: Ownership) -> dict[str, Owner]:
    """By handle, the owner of a variable that has one."""
    return {
        name: owner
        for name, variable in traced.variables.items()
        if (owner := ownership.owner(variable)) is not None
    }


def _stored(
    traced: TracedStep, ownership: Ownership, topology: Topology
) -> dict[str, int]:
    """By handle, the bytes of a variable that some replicas have to gather."""
    if topology.is_shared:
        return {}
    return {
        name: num_bytes(variable)
        for name, variable in traced.variables.items()
        if ownership.is_stored(variable)
    }


def _varying(body: Body, found: Invariance) -> set[str]:
    return {node.name for node in body.nodes} - found.nodes


def _find_live(
    traced: TracedStep,
    body: Body,
    found: Invariance,
    owners: Mapping[str, Owner],
    kept: Mapping[str, Owner],
    topology: Topology,
) -> Liveness | None:
    """Who emits what, where variables have owners; None where all emit all."""
    if not owners or (topology.is_shared and topology.num_programs == 1):
        return None
    tensors = [name.partition(":")[0] for name in traced.output_names]
    operands = [name for c in traced.collectives for name in c.read]
    # A read has no effect: who does not use its value does not need it.
    reads = {node.name for node in body.nodes if node.op in READ_OPS}
    effects = [name for name in traced.control_output_names if name not in reads]
    elsewhere = [liveness.ELSEWHERE] if topology.num_programs > 1 else []
    return liveness.analyze(
        body,
        invariant=found.nodes,
        primaries={*topology.primaries, *elsewhere},
        handles=set(traced.variables),
        owners={
            name: owner.primary
            if owner.program_id == topology.program_id
            else liveness.ELSEWHERE
            for name, owner in owners.items()
        },
        roots=[*tensors, *operands, *effects],
        homes=owned.homes(kept, topology),
    )


def _check_slots(
    traced: TracedStep,
    body: Body,
    live: Liveness,
    owners: Mapping[str, Owner],
    ownership: Ownership,
    topology: Topology,
) -> None:
    """Rejects a step that uses optimizer state in a program that does not have it."""
    variables = traced.variables
    slots = {n: o for n, o in owners.items() if ownership.is_slot(variables[n])}
    shares.check(
        body,
        live,
        {name: owner.program_id for name, owner in slots.items()},
        topology.program_id,
        {name: variables[name].name for name in slots},
    )


def _find_shares(
    traced: TracedStep,
    body: Body,
    live: Liveness,
    owners: Mapping[str, Owner],
    ownership: Ownership,
) -> tuple[Share, ...]:
    variables = traced.variables
    found = []
    for node in body.nodes:
        if node.name not in live.writers:
            continue
        handles = live.written[node.name]
        owner = next(owners[handle] for handle in handles if handle in owners)
        found += [
            shares.Share(
                node=node.name,
                handle=handle,
                source=owner.program_id,
                dtype=variables[handle].dtype,
                shape=variables[handle].shape,
            )
            for handle in handles
            if not ownership.is_slot(variables[handle])
        ]
    return tuple(found)


def _depths(
    traced: TracedStep, body: Body, *, are_joined: bool = False
) -> dict[str, int]:
    follows = {
        marker: collective.operands if are_joined else (operand,)
        for collective in traced.collectives
        for marker, operand in zip(collective.markers, collective.operands, strict=True)
    }
    return body_lib.depths(body, follows)
