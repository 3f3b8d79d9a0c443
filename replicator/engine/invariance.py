"""Invariance: which parts of a step have the same value on every replica.

A mirrored variable stays mirrored exactly if every value written to it is the same on
every replica. That is a property of the graph: batches, random numbers and the replica
id vary; results of reductions do not; a node whose inputs are all invariant is
invariant. So the engine proves which variables are mirrored instead of trusting a flag,
finds replica-local ones (batch-norm statistics) by itself, and knows which work need be
done only once where replicas share memory.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from replicator.engine.effects import READ_OPS, EffectTable
from replicator.errors import UnsynchronisedUpdateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from replicator.engine.body import Body


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Invariance:
    """The result of the analysis.

    Attributes:
      nodes: Names of nodes whose outputs and effects are equal on every replica.
      local: Handle placeholders of replica-local variables.
      local_because: For each of them, the node that writes a varying value.
    """

    nodes: frozenset[str]
    local: frozenset[str]
    local_because: dict[str, str]


def analyze(
    body: Body,
    *,
    invariant_inputs: Collection[str],
    handles: Collection[str],
    local: Collection[str],
) -> Invariance:
    """Finds the least set of replica-local variables and all invariant nodes.

    Args:
      body: The single-device graph.
      invariant_inputs: Placeholders with one value for all replicas: results of
        collectives and captured tensors.
      handles: Placeholders of variable handles.
      local: Handles known to be replica-local beforehand.

    Returns:
      What varies and what does not.
    """
    effects = EffectTable(body.library)
    found = dict.fromkeys(local, "")
    while True:
        nodes, varying_writes = _pass(
            body, set(invariant_inputs), set(handles), set(found), effects
        )
        new = {h: n for h, n in varying_writes.items() if h not in found}
        if not new:
            return Invariance(
                nodes=frozenset(nodes),
                local=frozenset(found),
                local_because={h: n for h, n in found.items() if n},
            )
        found.update(new)


def check_trainable(
    invariance: Invariance, variables: Mapping[str, Any], num_replicas: int
) -> None:
    """Refuses steps that train each replica's copy apart without saying so.

    Raises:
      UnsynchronisedUpdateError: Names the variables and the way out.
    """
    if num_replicas == 1:
        return
    drifting = [
        variables[handle].name
        for handle in invariance.local_because
        if variables[handle].trainable
    ]
    if drifting:
        more = f" and {len(drifting) - 1} more" if len(drifting) > 1 else ""
        raise UnsynchronisedUpdateError(
            f"trainable variable {drifting[0]!r}{more} would be updated with a value "
            "that differs between replicas, so the copies would drift apart; wrap the "
            "optimizer with repl.wrap_optimizer(), or all_reduce the gradients, or "
            "make the variable with synchronization="
            "tf.VariableSynchronization.ON_READ if each replica shall keep its own"
        )


def _pass(
    body: Body,
    invariant_inputs: set[str],
    handles: set[str],
    local: set[str],
    effects: EffectTable,
) -> tuple[set[str], dict[str, str]]:
    mirrored = handles - local
    same = invariant_inputs | mirrored
    varying_writes: dict[str, str] = {}
    invariant: set[str] = set()
    alias = {handle: handle for handle in handles}
    for node in body.nodes:
        if node.op == "Identity" and node.inputs[0].node in alias:
            alias[node.name] = alias[node.inputs[0].node]
        of_node = effects.of(node.proto, len(node.inputs))
        if of_node.is_pure and all(ref.node in same for ref in node.inputs):
            same.add(node.name)
            invariant.add(node.name)
            continue
        for position in of_node.writes:
            if position < len(node.inputs) and node.op not in READ_OPS:
                origin = alias.get(node.inputs[position].node)
                if origin in mirrored:
                    varying_writes.setdefault(origin, node.name)
    return invariant, varying_writes
