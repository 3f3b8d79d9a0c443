"""Divergence that feeds a gradient: state of one replica by which all of them train.

A queue, a codebook or a probability that every replica updates from its own batch comes
to differ between replicas. The gradients that depend on it are averaged, and the
weights stay the same everywhere, but they are not those that one device would have:
nothing else in the step shows it. So such a step is refused, while it is traced.

What is refused is narrow, because most replica-local state is harmless:

- the variable was found to be replica-local. One that is declared to be, with
  ``synchronization=tf.VariableSynchronization.ON_READ``, is meant to differ;
- its value reaches the operand of a collective, together with a batch, a weight or
  random numbers. Statistics that a layer only updates, and metrics, never do; state
  alone, as in ``all_mean(total)``, is an aggregation on read;
- the result of that collective reaches a write of a trainable variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.engine.graph import flow
from replicator.engine.graph.effects import READ_OPS, EffectTable
from replicator.errors import UnsynchronisedUpdateError
from replicator.step.tracing import shown
from replicator.variables.kinds import Kind, declared_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from replicator.collectives.call import Collective
    from replicator.engine.graph.body import Body, Node, Ref
    from replicator.engine.graph.trace import TracedStep


def check(traced: TracedStep, body: Body, local: Collection[str]) -> None:
    """Rejects a step whose gradients depend on state that differs between replicas."""
    variables = traced.variables
    diverging = [h for h in local if declared_kind(variables[h]) is Kind.MIRRORED]
    trained = {h for h, v in variables.items() if v.trainable and h not in local}
    if not (diverging and trained and traced.collectives):
        return
    for collective, mask in _suspects(traced, body, diverging):
        if not _feeds(traced, body, collective, trained):
            continue
        found = [h for bit, h in enumerate(diverging, 1) if mask >> bit & 1]
        raise UnsynchronisedUpdateError(_message(traced, collective, found))


def _suspects(
    traced: TracedStep, body: Body, diverging: list[str]
) -> Iterator[tuple[Collective, int]]:
    """Collectives of values that depend on diverging state, and on which."""
    variables = traced.variables
    varying = [
        *traced.argument_names,
        *(marker for c in traced.collectives for marker in c.markers),
        *(handle for handle, variable in variables.items() if variable.trainable),
        *filter(None, [traced.replica_id_name]),
    ]
    sources = dict.fromkeys(varying, flow.VARIES)
    for bit, handle in enumerate(diverging, 1):
        sources[handle] = 1 << bit
    reached = flow.trace_sources(body, sources)
    for collective in traced.collectives:
        for operand in collective.operands:
            mask = reached.of(body.names.ref(operand))
            if mask & flow.VARIES and mask > flow.VARIES:
                yield collective, mask


def _feeds(
    traced: TracedStep, body: Body, collective: Collective, trained: Collection[str]
) -> bool:
    """Whether a write of a trained variable depends on the result of a collective."""
    nodes = {node.name: node for node in body.nodes}
    effects = EffectTable(body.library)
    follows = {m: c.operands for c in traced.collectives for m in c.markers}
    writers: dict[str, list[Node]] = {handle: [] for handle in traced.variables}
    for node in body.nodes:
        for handle in _written(node, nodes, effects) & writers.keys():
            writers[handle].append(node)
    pending, seen = list(trained), set()
    while pending:
        name = pending.pop()
        if name in collective.markers:
            return True
        if name not in seen:
            seen.add(name)
            # Through state too: a step of Adam reads the moments that it has written.
            pending += [r.node for node in writers.get(name, ()) for r in node.inputs]
            pending += follows.get(name, ())
            pending += [ref.node for ref in nodes[name].inputs] if name in nodes else []
    return False


def _written(node: Node, nodes: dict[str, Node], effects: EffectTable) -> set[str]:
    """The handles of the variables that a node may write."""
    if node.op in READ_OPS:
        return set()
    written = effects.of(node.proto, len(node.inputs)).writes
    return {_origin(node.inputs[place], nodes) for place in written}


def _origin(ref: Ref, nodes: dict[str, Node]) -> str:
    """The placeholder that a tensor is, looking through identities."""
    while ref.node in nodes and nodes[ref.node].op == "Identity":
        ref = nodes[ref.node].inputs[0]
    return ref.node


def _message(traced: TracedStep, collective: Collective, found: list[str]) -> str:
    variable: Any = traced.variables[found[0]]
    name = variable.name.partition(":")[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    where = shown(traced.lines[found[0]]) or " by another step function"
    return (
        f"variable {variable.name!r}{more} is assigned a value that differs between "
        f"replicas{where}, and gradients that {collective.kind} joins depend on it, so "
        "the replicas would train by different states; average the value that you "
        f"assign, as in {name}.assign(replicator.all_mean(value)), or keep the values "
        "of all replicas, which replicator.all_gather(value) stacks; for batch norm, "
        "use replicator.CrossReplicaBatchNormalization; if each replica shall have "
        "a state of its own, create the variable with "
        "synchronization=tf.VariableSynchronization.ON_READ"
    )
