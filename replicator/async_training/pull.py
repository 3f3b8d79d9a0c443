"""Pull: a step reads variables from a server in one message per type.

Otherwise every variable that a step reads would be a separate transfer. The reads that
come before any write are removed from the traced graph; each worker's program reads all
small variables on their server, packs them there, and unpacks them on the worker.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from replicator.collectives import buckets
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES
from replicator.engine.graph.effects import READ_OPS
from replicator.engine.graph.emitter import Emitter
from replicator.variables.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import tensorflow as tf

    from replicator.async_training.table import ServerTable
    from replicator.engine.graph.body import Body, Ref
    from replicator.engine.graph.trace import TracedStep


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """Variables of one type that are sent together."""

    server: int  # Where they are.
    clock: str  # The node that reads the server's clock before them.
    dtype: tf.DType  # Their type.
    # By variable: the placeholder of its handle, the names of the reads that it
    # replaces, and its shape.
    reads: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]


def take_out(
    traced: TracedStep, body: Body, table: ServerTable, clocks: Mapping[int, int]
) -> tuple[Body, tuple[Pull, ...]]:
    """Takes the first reads of small shared variables out of a step."""
    clock_of, waits = _first_reads(traced, body, table, clocks)
    pulls = _group(traced, body, waits, clock_of, table)
    clocks_of = {name: clock_of[server] for name, (_, server) in waits.items()}
    return _rewrite(body, clocks_of, pulls), pulls


def _first_reads(
    traced: TracedStep, body: Body, table: ServerTable, clocks: Mapping[int, int]
) -> tuple[dict[int, str], dict[str, tuple[str, int]]]:
    """The reads that no write comes before: those without control edges."""
    clock_of: dict[int, str] = {}
    found = {}
    for node in body.nodes:
        handle = node.inputs[0].node if node.inputs else None
        if node.op not in READ_OPS or node.controls or handle not in traced.variables:
            continue
        variable = traced.variables[handle]
        clock_server = clocks.get(id(variable))
        if clock_server is not None and clock_server not in clock_of:
            clock_of[clock_server] = node.name
            continue
        server = table.placement.server_of(variable)
        if server is not None:
            found[node.name] = handle, server
    return clock_of, {name: at for name, at in found.items() if at[1] in clock_of}


def _group(
    traced: TracedStep,
    body: Body,
    waits: Mapping[str, tuple[str, int]],
    clock_of: Mapping[int, str],
    table: ServerTable,
) -> tuple[Pull, ...]:
    """Joins reads of small shared variables of one server and type."""
    is_read = {node.name for node in body.nodes if node.op == "ReadVariableOp"}
    groups: dict[tuple[int, tf.DType], dict[str, list[str]]] = {}
    for name, (handle, server) in waits.items():
        variable = traced.variables[handle]
        size = buckets.num_bytes(variable.shape, variable.dtype)
        is_small = 0 < size < FUSE_BELOW_BYTES
        if name in is_read and is_small and table.kind(variable) is Kind.MIRRORED:
            reads = groups.setdefault((server, variable.dtype), {})
            reads.setdefault(handle, []).append(name)
    return tuple(
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


def _rewrite(body: Body, clock_of: Mapping[str, str], pulls: Sequence[Pull]) -> Body:
    """Turns pulled reads into inputs, and lets the others wait for their clock."""
    pulled = {n for p in pulls for _, names, _ in p.reads for n in names}
    nodes = tuple(
        dataclasses.replace(node, controls=(clock_of[node.name],))
        if node.name in clock_of
        else node
        for node in body.nodes
        if node.name not in pulled
    )
    # The clock's reads have no inputs but handles, so they may come first.
    early = set(clock_of.values())
    return dataclasses.replace(
        body,
        nodes=tuple(sorted(nodes, key=lambda node: node.name not in early)),
        placeholders=body.placeholders | frozenset(pulled),
    )


def emit(
    pull: Pull,
    *,
    server_device: str,
    worker_device: str,
    handle: Callable[[str], str],
    clock: str,
) -> tuple[list[Any], dict[str, Ref]]:
    """Makes the nodes of one pull."""
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
    packed = emitter.pack(f"{name}/packed", reads, shapes, pull.dtype, server_device)
    values = emitter.unpack(name, packed, shapes, pull.dtype, worker_device)
    replaced = {
        read: value
        for (_, names, _), value in zip(pull.reads, values, strict=True)
        for read in names
    }
    return emitter.nodes, replaced
