"""Storage: the variables that stand for the handles of a step, replica by replica."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.graph import packed
from replicator.engine.graph.body import before_of, producer
from replicator.step import creation
from replicator.variables.packs import pack_of, variables_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from replicator.engine.graph.body import Body
    from replicator.engine.graph.invariance import Invariance
    from replicator.engine.graph.trace import TracedStep
    from replicator.placement.topology import Topology
    from replicator.variables.packs import Pack
    from replicator.variables.table import Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """A step that uses packs, and what stands for its handles.

    Attributes:
      traced: The step, without the nodes that packs replace.
      body: Its graph.
      variables: By handle placeholder, a ``tf.Variable`` per replica.
      unpacked: Variables that packs hold, and the step uses by themselves.
    """

    traced: TracedStep
    body: Body
    variables: Mapping[str, tuple[Any, ...]]
    unpacked: tuple[Entry, ...]


def fitting(
    traced: TracedStep,
    body: Body,
    found: Invariance,
    topology: Topology,
    *,
    is_compiled: bool,
) -> frozenset[str]:
    """Handles of the variables that differ between replicas and fit a pack."""
    if is_compiled or topology.num_local_replicas == 1:
        return frozenset()
    operands = [name for c in traced.collectives for name in c.read]
    named = [*traced.output_names, *operands, *traced.required, *traced.owned]
    return packed.fitting(body, found.local, set(map(producer, named)))


def find(
    traced: TracedStep,
    body: Body,
    entries: Mapping[str, Entry],
    fitting: Collection[str],
) -> Storage:
    """Finds what stands for the handles of a step.

    Args:
      traced: The step.
      body: Its graph.
      entries: Its variables, by handle placeholder.
      fitting: Those that the step uses as packs allow it.
    """
    variables: dict[str, tuple[Any, ...]] = {}
    unpacked: list[Entry] = []
    packs: dict[int, tuple[Pack, dict[str, int]]] = {}
    used = {name for node in body.nodes for name in before_of(node)}
    for name, entry in entries.items():
        pack = pack_of(entry)
        if pack is None:
            variables[name] = entry.copies
        elif name in fitting:
            packs.setdefault(id(pack), (pack, {}))[1][name] = entry.copies[0].index
        elif name in used:
            with tf.init_scope(), creation.allowed():
                variables[name] = variables_of(entry)
            unpacked.append(entry)
    layouts: dict[str, packed.Layout] = {}
    for pack, handles in packs.values():
        name = f"pack_{len(layouts)}"
        variables[name] = pack.vectors
        layouts[name] = packed.Layout(
            sizes=pack.sizes, dtype=pack.vectors[0].dtype, handles=handles
        )
    if layouts:
        body, instead = packed.pack(body, layouts)
        ends = (end for n in traced.control_output_names for end in instead.get(n, [n]))
        names = tuple(dict.fromkeys(ends))
        traced = dataclasses.replace(traced, control_output_names=names)
    return Storage(
        traced=traced, body=body, variables=variables, unpacked=tuple(unpacked)
    )
