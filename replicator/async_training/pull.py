"""Pull: a step reads variables from a server in one message per type.

Otherwise every variable that a step reads would be a separate transfer. The reads that
come before any write are removed from the traced graph; each worker's program reads all
small variables on their server, packs them there, and unpacks them on the worker.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from replicator.engine.analysis.plan import FUSE_BELOW_BYTES
from replicator.engine.graph.effects import READ_OPS
from replicator.engine.graph.emitter import Emitter
from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import tensorflow as tf

    from replicator.async_training.table import ServerTable
    from replicator.engine.graph.body import Body, Ref
    from replicator.engine.graph.trace import TracedStep


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """Variables of one type that are sent together.

    Attributes:
      server: Where they are.
      clock: The node that reads the server's clock before them.
      dtype: Their type.
      reads: By variable: the placeholder of its handle, the names of the reads that it
        replaces, and its shape.
    """

    server: int
    clock: str
    dtype: tf.DType
    reads: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]


def take_out(
    traced: TracedStep, body: Body, table: ServerTable, clocks: Mapping[int, int]
) -> tuple[Body, tuple[Pull, ...]]:
    """Takes the first reads of small shared variables out of a step.

    Args:
      traced: The step.
      body: Its optimized graph.
      table: Says which variables are shared.
      clocks: Server by the id of its clock variable.

    Returns:
      The body in which those reads are inputs, and the others on a server wait for the
      read of its clock; and what to read instead.
    """
    # A read without control edges is one that no write comes before.
    first = {
        node.name: node.inputs[0].node
        for node in body.nodes
        if node.op in READ_OPS
        and not node.controls
        and node.inputs
        and node.inputs[0].node in traced.variables
    }
    clock_of: dict[int, str] = {}
    for name, handle in first.items():
        server = clocks.get(id(traced.variables[handle]))
        if server is not None:
            clock_of.setdefault(server, name)
    is_read = {node.name for node in body.nodes if node.op == "ReadVariableOp"}
    groups: dict[tuple[int, tf.DType], dict[str, list[str]]] = {}
    waits: dict[str, str] = {}
    for name, handle in first.items():
        variable = traced.variables[handle]
        server = table.placement.server_of(variable)
        if server not in clock_of or name in clock_of.values():
            continue
        waits[name] = clock_of[server]
        if name in is_read and _is_small(variable) and _is_shared(variable, table):
            reads = groups.setdefault((server, variable.dtype), {})
            reads.setdefault(handle, []).append(name)
    pulls = tuple(
        Pull(
            server=server,
            clock=clock_of[server],
            dtype=dtype,
            reads=tuple(
                (handle, tuple(names), tuple(traced.variables[handle].shape))
                for handle, names in reads.items()
            ),
        )
        for (server, dtype), reads in groups.items()
        if len(reads) > 1
    )
    pulled = {n for p in pulls for _, names, _ in p.reads for n in names}
    nodes = tuple(
        dataclasses.replace(node, controls=(waits[node.name],))
        if node.name in waits
        else node
        for node in body.nodes
        if node.name not in pulled
    )
    # The clock's reads have no inputs but handles, so they may come first.
    early = set(clock_of.values())
    nodes = tuple(sorted(nodes, key=lambda node: node.name not in early))
    return (
        dataclasses.replace(
            body, nodes=nodes, placeholders=body.placeholders | frozenset(pulled)
        ),
        pulls,
    )


def emit(
    pull: Pull,
    *,
    server_device: str,
    worker_device: str,
    handle: Callable[[str], str],
    clock: str,
) -> tuple[list[Any], dict[str, Ref]]:
    """Makes the nodes of one pull.

    Args:
      pull: What to read.
      server_device: Where.
      worker_device: Where it is unpacked.
      handle: The function argument that stands for a handle's placeholder.
      clock: Node that comes before the reads.

    Returns:
      ``NodeDef``s, and by the name of a replaced read what stands for it.
    """
    name = f"pull_{pull.server}_{pull.dtype.name}"
    emitter = Emitter()
    reads = [
        emitter.add(
            f"{name}/read_{index}",
            "ReadVariableOp",
            [handle(placeholder)],
            server_device,
            "value:0",
            {"dtype": pull.dtype},
            [clock],
        )
        for index, (placeholder, _, _) in enumerate(pull.reads)
    ]
    shapes = [shape for _, _, shape in pull.reads]
    packed = emitter.pack(f"{name}/packed", reads, pull.dtype, server_device)
    values = emitter.unpack(name, packed, shapes, pull.dtype, worker_device)
    replaced = {
        read: value
        for (_, names, _), value in zip(pull.reads, values, strict=True)
        for read in names
    }
    return emitter.nodes, replaced


def _is_small(variable: Any) -> bool:
    elements = variable.shape.num_elements()
    size = variable.dtype.size
    return elements is not None and 0 < elements * size < FUSE_BELOW_BYTES


def _is_shared(variable: Any, table: ServerTable) -> bool:
    return table.kind(variable) is Kind.MIRRORED
