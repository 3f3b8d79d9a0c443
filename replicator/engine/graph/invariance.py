"""Invariance: which parts of a step have the same value on every replica.

A mirrored variable stays mirrored if and only if every value written to it is the same
on every replica. That is a property of the graph: batches, random numbers and the
replica id vary; results of reductions do not; a node whose inputs are all invariant is
invariant. So the engine proves which variables are mirrored instead of relying on a
flag, detects replica-local ones (batch-norm statistics), and knows which work has to be
done only once if replicas share memory.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from replicator.engine.graph.body import Ref
from replicator.engine.graph.effects import READ_OPS, EffectTable
from replicator.errors import UnsynchronisedUpdateError
from replicator.step.tracing import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Invariance:
    """The result of the analysis."""

    # Names of nodes whose outputs and effects are identical on every replica.
    nodes: frozenset[str]
    local: frozenset[str]  # Handle placeholders of replica-local variables.
    # For each of them, the node that writes a varying value.
    local_because: dict[str, str]


def analyze(
    body: Body,
    *,
    invariant_inputs: Collection[str],
    handles: Collection[str],
    local: Collection[str],
) -> Invariance:
    """Finds the least set of replica-local variables and all invariant nodes."""
    effects = EffectTable(body.library)
    found = dict.fromkeys(local, "")
    # The least fixed point from below: all variables count as mirrored until a write
    # that varies is found, which may make other writes vary. Starting from above (all
    # local) would never find one mirrored that is updated from itself.
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
    invariance: Invariance,
    variables: Mapping[str, Any],
    lines: Mapping[str, Sequence[str]],
) -> None:
    """Rejects steps that would make trainable variables diverge between replicas."""
    drifting = [h for h in invariance.local_because if variables[h].trainable]
    if drifting:
        name = variables[drifting[0]].name
        more = f" and {len(drifting) - 1} more" if len(drifting) > 1 else ""
        raise UnsynchronisedUpdateError(
            f"trainable variable {name!r}{more} would be updated with a value that "
            f"differs between replicas{shown(lines[drifting[0]])}, so the copies would "
            "diverge; wrap the optimizer with repl.wrap_optimizer(), or all_reduce the "
            "gradients; if it is state by which replicas train (a probability, a "
            "codebook), average the value that you assign, as in "
            "v.assign(replicator.all_mean(value)); if it is not a weight (a metric, a "
            "counter, a statistic), create it with trainable=False (tf.Variable is "
            "trainable by default): then each replica keeps its own copy; if replicas "
            "shall train separate copies, create it with "
            "synchronization=tf.VariableSynchronization.ON_READ"
        )


def check_required(invariance: Invariance, required: Mapping[str, str]) -> None:
    """Rejects steps in which something varies that must not."""
    for name, error in required.items():
        if name not in invariance.nodes:
            raise UnsynchronisedUpdateError(error)


def _pass(
    body: Body,
    invariant_inputs: set[str],
    handles: set[str],
    local: set[str],
    effects: EffectTable,
) -> tuple[set[str], dict[str, str]]:
    mirrored = handles - local
    known = _Known(invariant_inputs | mirrored, handles)
    varying_writes: dict[str, str] = {}
    invariant: set[str] = set()
    for node in body.nodes:
        known.look_through(node)
        of_node = effects.of(node.proto, len(node.inputs))
        # An effect is never invariant, even of the same values: printing, drawing and
        # reading a file happen once per replica. Writes are excepted by ``is_pure``:
        # one for all replicas is what sharing a variable means.
        if of_node.is_pure and all(map(known.is_same, node.inputs)):
            known.same.add(node.name)
            invariant.add(node.name)
            continue
        for position in of_node.writes:
            if position < len(node.inputs) and node.op not in READ_OPS:
                origin = known.origin(node.inputs[position])
                if origin in mirrored:
                    varying_writes.setdefault(str(origin), node.name)
    return invariant, varying_writes


class _Known:
    """What one pass knows of the tensors that it has seen.

    Attributes:
      same: Nodes and placeholders all of whose outputs are identical on every replica.
    """

    def __init__(self, same: set[str], handles: set[str]) -> None:
        self.same = same
        self._handles = handles
        self._same_outputs: set[Ref] = set()
        self._alias: dict[Ref, str] = {}

    def is_same(self, ref: Ref) -> bool:
        """Whether a tensor is identical on every replica."""
        return ref.node in self.same or ref in self._same_outputs

    def origin(self, ref: Ref) -> str | None:
        """The placeholder of the variable that a tensor is the handle of, if any."""
        return ref.node if ref.node in self._handles else self._alias.get(ref)

    def look_through(self, node: Node) -> None:
        """Propagates facts through identities: output i is input i.

        Gradients of collectives pass results and operands through one ``IdentityN``,
        and only the former are the same on every replica.
        """
        if node.op not in ("Identity", "IdentityN"):
            return
        for index, ref in enumerate(node.inputs):
            output = Ref(node=node.name, port=f"output:{index}")
            origin = self.origin(ref)
            if origin is not None:
                self._alias[output] = origin
            if self.is_same(ref):
                self._same_outputs.add(output)
