"""Pull: a step's variables travel from a server in one message per type.

Every variable that a step reads would be a transfer of its own. The reads that come
before any write are taken out of the traced graph, and each worker's program reads all
of a server's small variables there, packs them, and unpacks them on the worker.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.body import Ref, make_const, make_node
from replicator.engine.effects import READ_OPS
from replicator.engine.plan import FUSE_BELOW_BYTES
from replicator.engine.variables import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from replicator.engine.body import Body
    from replicator.engine.trace import TracedStep
    from replicator.servers.table import ServerTable


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """Variables of one type that travel together.

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
    nodes = [
        make_const(f"{name}/flat", np.array([-1], np.int32), server_device),
        make_const(f"{name}/axis", np.int32(0), server_device),
    ]
    flat = []
    for index, (placeholder, _, _) in enumerate(pull.reads):
        read, reshape = f"{name}/read_{index}", f"{name}/flat_{index}"
        nodes.append(
            make_node(
                read,
                "ReadVariableOp",
                [handle(placeholder)],
                server_device,
                {"dtype": pull.dtype},
                [clock],
            )
        )
        nodes.append(
            make_node(
                reshape,
                "Reshape",
                [Ref(node=read, port="value:0"), _output(f"{name}/flat")],
                server_device,
                {"T": pull.dtype, "Tshape": tf.int32},
            )
        )
        flat.append(_output(reshape))
    nodes.append(
        make_node(
            f"{name}/packed",
            "ConcatV2",
            [*flat, _output(f"{name}/axis")],
            server_device,
            {"N": len(flat), "T": pull.dtype, "Tidx": tf.int32},
        )
    )
    sizes = [int(np.prod(shape, dtype=np.int64)) for _, _, shape in pull.reads]
    nodes += [
        make_const(f"{name}/sizes", np.array(sizes, np.int32), worker_device),
        make_const(f"{name}/split_axis", np.int32(0), worker_device),
        make_node(
            f"{name}/split",
            "SplitV",
            [
                _output(f"{name}/packed"),
                _output(f"{name}/sizes"),
                _output(f"{name}/split_axis"),
            ],
            worker_device,
            {"num_split": len(sizes), "T": pull.dtype, "Tlen": tf.int32},
        ),
    ]
    values: dict[str, Ref] = {}
    for index, (_, names, shape) in enumerate(pull.reads):
        target, result = f"{name}/shape_{index}", f"{name}/value_{index}"
        nodes.append(make_const(target, np.array(shape, np.int32), worker_device))
        nodes.append(
            make_node(
                result,
                "Reshape",
                [Ref(node=f"{name}/split", port=f"output:{index}"), _output(target)],
                worker_device,
                {"T": pull.dtype, "Tshape": tf.int32},
            )
        )
        values.update(dict.fromkeys(names, _output(result)))
    return nodes, values


def _output(node: str) -> Ref:
    return Ref(node=node, port="output:0")


def _is_small(variable: Any) -> bool:
    elements = variable.shape.num_elements()
    size = variable.dtype.size
    return elements is not None and 0 < elements * size < FUSE_BELOW_BYTES


def _is_shared(variable: Any, table: ServerTable) -> bool:
    return table.kind(variable) is Kind.MIRRORED
