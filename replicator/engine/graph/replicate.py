"""Replicate: copy the single-device nodes once per replica.

A pure function of graphs: nodes get a ``replica_<r>/`` name, the replica's device and
the replica's copies of variables; random ops get the replica's seed. Where replicas
share memory, invariant nodes (same value on every replica) are emitted once per copy
of the mirrored variables; such a node waits for whatever it would have waited for on
any replica that uses the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.engine.graph.body import Ref, make_node, rewrite
from replicator.engine.graph.copy_order import CopyOrder
from replicator.engine.graph.liveness import ELSEWHERE
from replicator.engine.graph.localize import Localizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node
    from replicator.engine.graph.copy_order import Resolve
    from replicator.engine.graph.liveness import Liveness
    from replicator.placement.topology import Topology

    # (replica, placeholder) -> device of the variable behind a handle, or None
    HandleDevice = Callable[[int, str], str | None]
    # placeholder of a handle -> type of the variable
    HandleDtype = Callable[[str], tf.DType]


class Replicas:
    """Copies of a body."""

    def __init__(
        self,
        body: Body,
        topology: Topology,
        *,
        merged: Collection[str],
        liveness: Liveness | None = None,
        resolve: Resolve,
        handle_device: HandleDevice,
        handle_dtype: HandleDtype | None = None,
        received: Mapping[tuple[str, str], Ref | str] | None = None,
    ) -> None:
        """Prepares copying."""
        self._body = body
        self._resolve = resolve
        self._handle_device = handle_device
        self._handle_dtype = handle_dtype or (lambda _: tf.float32)
        self.order = CopyOrder(
            body,
            topology,
            merged=merged,
            liveness=liveness,
            resolve=resolve,
            received=received,
        )
        self._localizer = Localizer(body.library, topology)

    @property
    def library(self) -> list[Any]:
        """Functions that the copies call, those with random ops once per replica."""
        return self._localizer.library

    def ref(self, replica: int, ref: Ref) -> Ref | str:
        """A tensor of the single-device graph as it is on a replica."""
        if ref.node in self._body.placeholders:
            return self._resolve(replica, ref.node)
        return Ref(node=self.order.name(replica, ref.node), port=ref.port)

    def nodes(self) -> list[Any]:
        """All nodes of all replicas as ``NodeDef``s."""
        nodes: list[Any] = []
        for node in self._body.nodes:
            copies = self.order.copies(node.name)
            made = {r: self._copy(node, r, replicas) for r, replicas in copies.items()}
            if self._localizer.is_local(node.proto):
                for replica, proto in made.items():
                    self._localizer.localize(proto, replica)
            nodes += made.values()
            writer = self.order.writer(node.name)
            if writer is not None:
                nodes += self._refresh(node, writer)
        return nodes

    def _copy(self, node: Node, replica: int, waits_for: Sequence[int]) -> Any:
        proto = _tf_compat.NodeDef()
        name, device = self.order.name(replica, node.name), self._device(node, replica)
        inputs = (str(self.ref(replica, ref)) for ref in node.inputs)
        rewrite(proto, node.proto, name, device, inputs)
        # Colocation is spelled out by devices; names in it would be stale.
        proto.attr.pop("_class", None)
        edges = self.order.controls(node, waits_for)
        if self.order.writer(node.name) is not None:
            once = self.order.not_copied(node.name)
            earlier = self.order.before(node, waits_for, once)
            edges = list(dict.fromkeys([*edges, *earlier]))
        proto.input.extend(edges)
        return proto

    def _refresh(self, node: Node, writer: int) -> list[Any]:
        """Copies the result of an owned write to the variables of other primaries."""
        nodes = []
        for handle in self.order.copied(node.name):
            if writer == ELSEWHERE:
                value = self.order.received(node.name, handle)
            else:
                value = f"{self.order.new(node.name, handle)}:value:0"
                nodes.append(self._read_new(node, writer, handle))
            nodes += [
                self._assign(node, primary, replicas, handle, value)
                for primary, replicas in self.order.sharing.items()
                if primary != writer
            ]
        return nodes

    def _read_new(self, node: Node, writer: int, handle: str) -> Any:
        """Reads a variable on its writer, after the node that writes it."""
        return make_node(
            self.order.new(node.name, handle),
            "ReadVariableOp",
            [self._resolve(writer, handle)],
            self._handle_device(writer, handle) or "",
            {"dtype": self._handle_dtype(handle)},
            controls=[self.order.name(writer, node.name)],
        )

    def _assign(
        self,
        node: Node,
        primary: int,
        replicas: Sequence[int],
        handle: str,
        value: Ref | str,
    ) -> Any:
        """Assigns the new value to a primary's copy, once nobody needs the old one."""
        waits = dict.fromkeys(self.order.controls(node, replicas))
        waits |= dict.fromkeys(self.order.before(node, replicas, [handle]))
        return make_node(
            self.order.refresh_name(node.name, handle, primary),
            "AssignVariableOp",
            [self._resolve(primary, handle), value],
            self._handle_device(primary, handle) or "",
            {"dtype": self._handle_dtype(handle)},
            controls=[edge.removeprefix("^") for edge in waits],
        )

    def _device(self, node: Node, replica: int) -> str:
        for ref in node.inputs:
            device = self._handle_device(replica, ref.node)
            if device is not None:
                return device
        return self._localizer.device(node.proto.device, replica)
