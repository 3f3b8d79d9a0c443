"""Analysis: all facts about a step before its replicas are created.

The step is traced and its graph optimized, once for all replicas. From the graph follow
the kinds of its variables, what each replica has to compute, how the collectives are
carried out, and what owners of variables send to the programs of other workers.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from replicator._tf.compat import reachable
from replicator.collectives import transport
from replicator.collectives.kinds import Collective, Transfer
from replicator.core import context
from replicator.core.step import at_lines
from replicator.engine import body as body_lib
from replicator.engine import dataflow, liveness, optimize, plan
from replicator.engine.liveness import REMOTE, schedule_gathers
from replicator.engine.trace import TracedStep, trace
from replicator.errors import UnsynchronisedUpdateError
from replicator.variables.kinds import Kind, declared_kind
from replicator.variables.table import Entry, Owner, Ownership, VariableTable, num_bytes

if TYPE_CHECKING:
    from replicator.core.devices import Topology
    from replicator.engine.body import Body
    from replicator.engine.dataflow import Invariance
    from replicator.engine.liveness import Liveness, VariableGather


# A queue, a codebook or a probability that every replica updates from its own batch
# comes to differ between replicas. The gradients that depend on it are averaged, and
# the weights stay the same everywhere, but they are not those that one device would
# have: nothing else in the step shows it. So such a step is refused, while it is
# traced.
#
# What is refused is narrow, because most replica-local state is harmless:
#
# - the variable was found to be replica-local. One that is declared to be, with
#   ``synchronization=tf.VariableSynchronization.ON_READ``, is meant to differ;
# - its value reaches the operand of a collective, together with a batch, a weight or
#   random numbers. Statistics that a layer only updates, and metrics, never do; state
#   alone, as in ``all_mean(total)``, is an aggregation on read;
# - the result of that collective reaches a write of a trainable variable.


def check_divergence(traced: TracedStep, body: Body, local: Collection[str]) -> None:
    """Rejects a step whose gradients depend on state that differs between replicas."""
    variables = traced.variables
    diverging = [h for h in local if declared_kind(variables[h]) is Kind.MIRRORED]
    trained = {h for h, v in variables.items() if v.trainable and h not in local}
    if not (diverging and trained and traced.collectives):
        return
    varying = [
        *traced.argument_names,
        *(marker for c in traced.collectives for marker in c.markers),
        *(handle for handle, variable in variables.items() if variable.trainable),
        *filter(None, [traced.replica_id_name]),
    ]
    sources = dict.fromkeys(varying, dataflow.VARIES)
    for bit, handle in enumerate(diverging, 1):
        sources[handle] = dataflow.VARIES << bit
    reached = dataflow.walk(
        body.nodes, sources, dataflow.Functions(body.library).outputs
    )
    feeding = _feeding(traced, body, trained)
    for collective in traced.collectives:
        if feeding.isdisjoint(collective.markers):
            continue
        for operand in collective.operands:
            mask = reached.of(body.names.ref(operand))
            divergent = [
                h for h in diverging if mask & dataflow.VARIES and mask & sources[h]
            ]
            if divergent:
                _refuse_divergence(traced, collective, divergent)


def _feeding(traced: TracedStep, body: Body, trained: Collection[str]) -> set[str]:
    """The nodes on which a write of a trained variable depends."""
    before = {node.name: [ref.node for ref in node.inputs] for node in body.nodes}
    before |= {m: list(c.operands) for c in traced.collectives for m in c.markers}
    # Through state too: a step of Adam reads the moments that it has written.
    effects = dataflow.EffectTable(body.library)
    for name, handles in effects.written_variables(body, traced.variables).items():
        for handle in handles:
            before.setdefault(handle, []).extend(before[name])
    return {*reachable(trained, lambda name: before.get(name, ()))}


def _refuse_divergence(
    traced: TracedStep, collective: Collective, handles: list[str]
) -> NoReturn:
    variable: Any = traced.variables[handles[0]]
    name = variable.name.partition(":")[0]
    more = f" and {len(handles) - 1} more" if len(handles) > 1 else ""
    where = at_lines(traced.lines[handles[0]]) or " by another step function"
    raise UnsynchronisedUpdateError(
        f"variable {variable.name!r}{more} is assigned a value that differs between "
        f"replicas{where}, and gradients that {collective.kind} joins depend on it, so "
        "the replicas would train by different states; average the value that you "
        f"assign, as in {name}.assign(replicator.all_mean(value)), or keep the values "
        "of all replicas, which replicator.all_gather(value) stacks; for batch norm, "
        "use replicator.CrossReplicaBatchNormalization; if each replica shall have "
        "a state of its own, create the variable with "
        "synchronization=tf.VariableSynchronization.ON_READ"
    )


# With ``sharded_update="gradients"`` (Rajbhandari et al. 2020, stage 2) the step marks
# each averaged gradient with its variable. Here follow the two things that the engine
# needs to know: which primary runs what the mark stands for, and whose a reduction is;
# and what a step with a sharded update moves.


def find_owners(variables: Mapping[str, Any], ownership: Ownership) -> dict[str, Owner]:
    """By handle, or by marked node, the owner of a variable that has one."""
    return {
        name: owner
        for name, variable in variables.items()
        if (owner := ownership.owner(variable)) is not None
    }


def by_marker(body: Body, by_node: Mapping[str, Owner]) -> dict[str, Owner]:
    """By marker of a collective, who alone keeps its result."""
    sources = {node.name: [ref.node for ref in node.inputs] for node in body.nodes}
    # Between marker and mark there is at most a change of type or a factor.
    return {
        source: owner
        for name, owner in by_node.items()
        for source in reachable([name], lambda name: sources.get(name, ()))
        if source in body.placeholders
    }


def explain_owned(analysis: Analysis, topology: Topology) -> str:
    """One line with what a step moves; empty without a sharded update."""
    # Between programs that is what goes between processes, by rings; otherwise what
    # goes from the device of one replica to that of another.
    if analysis.liveness is None:
        return ""
    if topology.num_programs > 1:
        between = "workers"
        sums = [
            each.collective.kind.between_workers(bucket.num_bytes, topology).num_bytes
            for each in analysis.plans
            for bucket in each.buckets
        ]
        others = topology.num_programs - 1
        sizes = (transport.num_bytes(x.shape, x.dtype) for x in analysis.shares)
        moved = [float(others * size) for size in sizes]
    else:
        # Devices that keep copies count, also where they could read one memory.
        between = "devices"
        apart = dataclasses.replace(topology, memories=topology.primaries)
        transfers = plan.transfers(analysis.plans, apart)
        sums = [each.num_bytes for each in transfers if each.source != each.target]
        moved = [each.num_bytes for each in weights(analysis)]
    text = (
        f"sharded update: a step moves {round(sum(sums))} bytes by reductions and "
        f"{round(sum(moved))} bytes of weights between {between}"
    )
    if analysis.gathers:
        by_layer: collections.Counter[int] = collections.Counter()
        for gather in analysis.gathers:
            by_layer[gather.layer] += gather.num_bytes
        num_layers = len(by_layer)
        # A layer arrives while the one before it computes.
        most = max(by_layer[layer] + by_layer[layer + 1] for layer in [*by_layer])
        text += (
            f", in {len(analysis.gathers)} gathers of {num_layers} layers, at most "
            f"{most} bytes of weights on a replica at a time besides its own"
        )
    return text


def weights(analysis: Analysis) -> Iterator[Transfer]:
    """New values that owners send to other copies, and gathers of what they store."""
    # Between replicas of one program.
    live = analysis.liveness
    if live is None:
        return
    for node, handles in live.written.items():
        writer = live.writers[node]
        for handle in handles if writer != REMOTE else ():
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    traced: TracedStep  # The step as it was traced.
    body: Body  # Its optimized graph.
    invariance: Invariance  # What has the same value on every replica.
    entries: dict[str, Entry]  # The variables it uses, by handle placeholder.
    # Who emits what, where variables have owners; None where all emit all.
    liveness: Liveness | None
    plans: tuple[plan.CollectivePlan, ...]  # How each collective is carried out.
    # What owners in all programs send to the others, in the order of the variables.
    shares: tuple[plan.UpdatedVariable, ...]
    # By handle, who updates a variable that has an owner.
    owners: dict[str, Owner] = dataclasses.field(default_factory=dict)
    # Transfers of variables that their owners store.
    gathers: tuple[VariableGather, ...] = ()

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
    counts = topology.num_replicas, topology.num_logical_devices
    trace_step = functools.partial(trace, step_fn, specs, *counts)
    traced = context.in_first_trace(trace_step)
    ownership = table.ownership
    # The trace has variables where they were.
    if ownership.is_used and ownership.settle():
        traced = context.in_first_trace(trace_step)
    body = to_body(traced, name, topology)
    # A kind says whether replicas get the same: taken for granted, copies of variables
    # would differ while every check says that they are in sync.
    results = {m for c in traced.collectives if c.kind.is_invariant for m in c.markers}
    invariance = dataflow.find_invariance(
        body, traced.captures, traced.variables, table, results
    )
    if topology.num_replicas > 1:
        check_invariance(traced, body, invariance, invariance.local)
    variables = traced.variables
    gathers: tuple[VariableGather, ...] = ()
    # Variables that some replicas have to gather.
    sizes = {
        name: num_bytes(variable)
        for name, variable in variables.items()
        if not topology.is_shared and ownership.is_stored(variable)
    }
    if sizes:
        # What is sent together waits for all operands of the call.
        joined = _depths(traced, body, are_joined=True)
        varying = {node.name for node in body.nodes} - invariance.nodes
        made = schedule_gathers(body, sizes, joined, varying)
        body, gathers = made.body, made.gathers
        nodes = invariance.nodes.union(made.added)
        invariance = dataclasses.replace(invariance, nodes=nodes)
    entries = {}
    for handle, variable in variables.items():
        kind = table.kind(variable)
        is_local = handle in invariance.local and topology.num_replicas > 1
        if is_local and kind is Kind.MIRRORED:
            kind = Kind.LOCAL
        entries[handle] = table.require(variable, kind)
    owners: dict[str, Owner] = {}
    kept: dict[str, Owner] = {}
    if ownership.is_used:
        owners = find_owners(variables, ownership)
        marked = {n: v for n, v in traced.owned.items() if n in invariance.nodes}
        kept = find_owners(marked, ownership)
    # Who emits what, where variables have owners; otherwise all emit all.
    live = None
    if owners and not (topology.is_shared and topology.num_programs == 1):
        live = _find_live(traced, body, invariance, owners, kept, topology)
    if live is not None and topology.num_programs > 1:
        slots = [n for n in owners if ownership.is_slot(variables[n])]
        plan.check_shares(
            body,
            live,
            {name: owners[name].program_id for name in slots},
            topology.program_id,
            {name: variables[name].name for name in slots},
        )
    # Where the order of transfers matters: some wait, or are long on the way.
    are_apart = topology.num_programs > 1 or topology.spans_processes
    orders_transfers = are_apart or topology.has_own_gpus
    return Analysis(
        traced=traced,
        body=body,
        invariance=invariance,
        entries=entries,
        liveness=live,
        owners=owners,
        gathers=gathers,
        plans=plan.make_plan(
            traced.collectives,
            topology,
            _depths(traced, body) if orders_transfers else None,
            # Programs side by side need other results, but make the same plan.
            {} if live is None or is_in_group else live.results,
            (plan.operand_devices(traced) if topology.num_logical_devices > 1 else {}),
            {} if live is None else by_marker(body, kept),
        ),
        shares=(
            _find_shares(traced, body, live, owners, ownership)
            if live is not None and is_in_group
            else ()
        ),
    )


def to_body(traced: TracedStep, name: str, topology: Topology) -> Body:
    """Places and optimizes the graph of a traced step."""
    if topology.num_logical_devices > 1:
        plan.place(traced, topology)
    notes: list[str] = []
    optimized = optimize.optimize(traced, topology, notes)
    if optimized.library.function:
        optimize.own_functions(optimized, name)
    body = body_lib.from_graph_def(optimized)
    return dataclasses.replace(body, notes=tuple(notes))


def check_invariance(
    traced: TracedStep, body: Body, invariance: Invariance, local: Collection[str]
) -> None:
    """Rejects steps that let replicas diverge, by what is the same on all of them."""
    for name, error in traced.required.items():  # which says more
        if name not in invariance.nodes:
            raise UnsynchronisedUpdateError(error)
    variables, lines = traced.variables, traced.lines
    drifting = [h for h in invariance.local_because if variables[h].trainable]
    if drifting:
        name = variables[drifting[0]].name
        more = f" and {len(drifting) - 1} more" if len(drifting) > 1 else ""
        raise UnsynchronisedUpdateError(
            f"trainable variable {name!r}{more} would be updated with a value that "
            f"differs between replicas{at_lines(lines[drifting[0]])}, so the copies "
            "would diverge; wrap the optimizer with repl.wrap_optimizer(), or "
            "all_reduce the gradients; if it is state by which replicas train (a "
            "probability, a codebook), average the value that you assign, as in "
            "v.assign(replicator.all_mean(value)); if it is not a weight (a metric, a "
            "counter, a statistic), create it with trainable=False (tf.Variable is "
            "trainable by default): then each replica keeps its own copy; if replicas "
            "shall train separate copies, create it with "
            "synchronization=tf.VariableSynchronization.ON_READ"
        )
    if local:
        check_divergence(traced, body, local)


def _find_live(
    traced: TracedStep,
    body: Body,
    invariance: Invariance,
    owners: Mapping[str, Owner],
    kept: Mapping[str, Owner],
    topology: Topology,
) -> Liveness:
    tensors = [name.partition(":")[0] for name in traced.output_names]
    operands = [name for c in traced.collectives for name in c.read]
    # A read has no effect: who does not use its value does not need it.
    reads = {node.name for node in body.nodes if node.op in dataflow.READ_OPS}
    effects = [name for name in traced.control_output_names if name not in reads]
    elsewhere = [liveness.REMOTE] if topology.num_programs > 1 else []
    return liveness.analyze(
        body,
        invariant=invariance.nodes,
        primaries={*topology.primaries, *elsewhere},
        handles=set(traced.variables),
        owners={
            name: owner.primary
            if owner.program_id == topology.program_id
            else liveness.REMOTE
            for name, owner in owners.items()
        },
        roots=[*tensors, *operands, *effects],
        # Between programs no primary runs what is marked for all: a sum arrives
        # everywhere, since rings do not reduce-scatter, and what is small of it is
        # computed from that rather than sent.
        assigned_replica={
            n: o.primary for n, o in kept.items() if topology.num_programs == 1
        },
    )


def _find_shares(
    traced: TracedStep,
    body: Body,
    live: Liveness,
    owners: Mapping[str, Owner],
    ownership: Ownership,
) -> tuple[plan.UpdatedVariable, ...]:
    variables = traced.variables

    def source(written: Sequence[str]) -> int:
        return next(owners[handle].program_id for handle in written if handle in owners)

    updated = [
        plan.UpdatedVariable(
            node=node.name,
            handle=handle,
            source=source(live.written[node.name]),
            dtype=variables[handle].dtype,
            shape=variables[handle].shape,
        )
        for node in body.nodes
        if node.name in live.writers
        for handle in live.written[node.name]
        if not ownership.is_slot(variables[handle])
    ]
    # Nodes are in the order of names, and layers have others in a program that made
    # more layers before.
    places = {handle: index for index, handle in enumerate(variables)}
    return tuple(sorted(updated, key=lambda share: places[share.handle]))


def _depths(
    traced: TracedStep, body: Body, *, are_joined: bool = False
) -> dict[str, int]:
    follows = {
        marker: collective.operands if are_joined else (operand,)
        for collective in traced.collectives
        for marker, operand in zip(collective.markers, collective.operands, strict=True)
    }
    return body_lib.depths(body, follows)
