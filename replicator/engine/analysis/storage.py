"""Storage: the variables that stand for the handles of a step, replica by replica."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.graph import packed
from replicator.engine.graph.body import producer, uses_of
from replicator.step import creation
from replicator.variables.packs import pack_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from replicator.engine.graph.body import Body
    from replicator.engine.graph.invariance import Invariance
    from replicator.engine.graph.trace import TracedStep
    from replicator.placement.topology import Topology
    from replicator.variables.packs import Pack, PackedCopy
    from replicator.variables.table import Entry


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """What stands for the handles of a step.

    Attributes:
      variables: By handle placeholder, a ``tf.Variable`` per replica.
      layouts: The packs among them.
      unpacked: Copies that packs hold, and the variables that the step uses instead.
    """

    variables: Mapping[str, tuple[Any, ...]]
    layouts: Mapping[str, packed.Layout]
    unpacked: tuple[tuple[PackedCopy, Any], ...]


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


def find(body: Body, entries: Mapping[str, Entry], fitting: Collection[str]) -> Storage:
    """Finds what stands for the handles of a step.

    Args:
      body: Its graph.
      entries: Its variables, by handle placeholder.
      fitting: Those that the step uses as packs allow it.
    """
    variables: dict[str, tuple[Any, ...]] = {}
    unpacked: list[tuple[PackedCopy, Any]] = []
    packs: dict[int, tuple[Pack, dict[str, int]]] = {}
    used = uses_of(body.nodes)
    for name, entry in entries.items():
        pack = pack_of(entry)
        if pack is None:
            variables[name] = entry.copies
            continue
        index = entry.copies[0].index
        if name in fitting:
            packs.setdefault(id(pack), (pack, {}))[1][name] = index
        elif name in used:
            with tf.init_scope(), creation.allowed():
                variables[name] = pack.unpacked(index)
            unpacked += zip(entry.copies, variables[name], strict=True)
    layouts = {}
    for place, (pack, handles) in enumerate(packs.values()):
        name = f"pack_{place}"
        variables[name] = pack.vectors
        layouts[name] = packed.Layout(
            sizes=pack.sizes, dtype=pack.vectors[0].dtype, handles=handles
        )
    return Storage(variables=variables, layouts=layouts, unpacked=tuple(unpacked))


def use(
    traced: TracedStep, body: Body, layouts: Mapping[str, packed.Layout]
) -> tuple[TracedStep, Body]:
    """Lets a step use packs."""
    if not layouts:
        return traced, body
    body, instead = packed.pack(body, layouts)
    ends = (end for n in traced.control_output_names for end in instead.get(n, [n]))
    names = tuple(dict.fromkeys(ends))
    return dataclasses.replace(traced, control_output_names=names), body
