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
from replicator.engine.graph.body import Ref, make_node
from replicator.engine.graph.liveness import ELSEWHERE
from replicator.engine.graph.localize import Localizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from replicator.engine.graph.body import Body, Node
    from replicator.engine.graph.liveness import Liveness
    from replicator.placement.topology import Topology

    # (replica, placeholder) -> what stands for it, a Ref or a function argument
    Resolve = Callable[[int, str], Ref | str]
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
        """Prepares copying.

        Args:
          body: The single-device graph.
          topology: Where the replicas are.
          merged: Nodes that are emitted once per copy of the mirrored variables.
          liveness: Who emits what, where variables have owners.
          resolve: What stands for an input.
          handle_device: Where the variable behind a handle is.
          handle_dtype: Its type.
          received: By node and handle, the value of a variable after an update, as it
            came from the program that updates; None if this is the only program.
        """
        self._body = body
        self._topology = topology
        self._replicas = range(topology.num_local_replicas)
        self._merged = frozenset(merged)
        self._homes = {} if liveness is None else liveness.homes
        self._written = {} if liveness is None else liveness.written
        self._emitted = None if liveness is None else liveness.emitted
        self._earlier = {} if liveness is None else liveness.earlier
        self._resolve = resolve
        self._handle_device = handle_device
        self._handle_dtype = handle_dtype or (lambda _: tf.float32)
        self._inputs = {
            node.name: ([ref.node for ref in node.inputs], node.controls)
            for node in body.nodes
        }
        self._waits: dict[tuple[int, str], list[str]] = {}
        self._received = received
        self._localizer = Localizer(body.library, topology)

    @property
    def library(self) -> list[Any]:
        """Functions that the copies call, those with random ops once per replica."""
        return self._localizer.library

    def name(self, replica: int, node: str) -> str:
        """Name of a node on a replica of this program."""
        owner = self._topology.holders[replica] if node in self._merged else replica
        owner = self._homes.get(node, owner)
        return f"replica_{self._topology.replica_id(owner)}/{node}"

    def ref(self, replica: int, ref: Ref) -> Ref | str:
        """A tensor of the single-device graph as it is on a replica."""
        if ref.node in self._body.placeholders:
            return self._resolve(replica, ref.node)
        return Ref(node=self.name(replica, ref.node), port=ref.port)

    def new(self, node: str, handle: str) -> str:
        """Name of the node that reads what a home node wrote."""
        return f"{self.name(0, node)}/new_{handle}"

    def effects(self, node: str) -> list[str]:
        """Names of the nodes that have the effect of a node on all replicas."""
        edges = [edge for r in self._replicas for edge in self._after(r, node)]
        return list(dict.fromkeys(edge.removeprefix("^") for edge in edges))

    def nodes(self) -> list[Any]:
        """All nodes of all replicas as ``NodeDef``s."""
        copies = []
        holders = self._topology.holders
        sharing = {
            holder: [r for r in self._replicas if holders[r] == holder]
            for holder in dict.fromkeys(holders)
        }
        for node in self._body.nodes:
            if node.name in self._homes:
                # Others may read what exists once: it waits for all of them.
                home = self._homes[node.name]
                if home != ELSEWHERE:
                    copies.append(self._copy(node, home, self._replicas))
                copies += self._refresh(node, sharing)
            elif node.name in self._merged:
                copies += [
                    self._copy(node, holder, replicas)
                    for holder, replicas in sharing.items()
                    if self._emitted is None or holder in self._emitted[node.name]
                ]
            else:
                copies += [self._copy(node, r, [r]) for r in self._replicas]
        return copies

    def _copy(self, node: Node, replica: int, waits_for: Sequence[int]) -> Any:
        proto = _tf_compat.NodeDef()
        proto.CopyFrom(node.proto)
        proto.name = self.name(replica, node.name)
        proto.device = self._device(node, replica)
        # Colocation is spelled out by devices; names in it would be stale.
        proto.attr.pop("_class", None)
        del proto.input[:]
        proto.input.extend(str(self.ref(replica, ref)) for ref in node.inputs)
        edges = self._controls(node, waits_for)
        if node.name in self._homes:
            once = set(self._written[node.name]) - set(self._copied(node.name))
            edges = list(dict.fromkeys([*edges, *self._before(node, waits_for, once)]))
        proto.input.extend(edges)
        self._localizer.localize(proto, replica)
        return proto

    def _controls(self, node: Node, replicas: Sequence[int]) -> list[str]:
        edges: dict[str, None] = {}
        for control in node.controls:
            for replica in replicas:
                if control in self._body.placeholders:
                    target = self._resolve(replica, control)
                    if isinstance(target, str):
                        continue  # arguments are there before anything runs
                    edges[f"^{target.node}"] = None
                else:
                    edges |= dict.fromkeys(self._after(replica, control))
        return list(edges)

    def _after(self, replica: int, node: str) -> list[str]:
        """Control edges that let a replica go on when a node has had its effect."""
        if node not in self._homes:
            holder = self._topology.holders[replica]
            is_live = self._emitted is None or node not in self._merged
            if is_live or holder in (self._emitted or {})[node]:
                return [f"^{self.name(replica, node)}"]
            return self._through(replica, node)
        holder, home = self._topology.holders[replica], self._homes[node]
        if home == holder:
            # Its value must have been read before it changes again.
            new = [f"^{self.new(node, h)}" for h in self._copied(node)]
            return [f"^{self.name(replica, node)}", *new]
        copied = [f"^{self._refresh_name(node, h, holder)}" for h in self._copied(node)]
        if copied:
            return copied
        # Without copies nothing here waits for what the node would have waited for.
        own = [] if home == ELSEWHERE else [f"^{self.name(replica, node)}"]
        return [*own, *self._through(replica, node)]

    def _through(self, replica: int, node: str) -> list[str]:
        """What a node that a replica does not have would have waited for there.

        The graph optimizer leaves out an edge that another way says already, and that
        way may lead through such a node.
        """
        if (replica, node) not in self._waits:
            inputs, controls = self._inputs[node]
            edges = [
                edge
                for name in (*inputs, *controls)
                if name not in self._body.placeholders
                for edge in self._after(replica, name)
            ]
            self._waits[replica, node] = list(dict.fromkeys(edges))
        return self._waits[replica, node]

    def _before(
        self, node: Node, replicas: Sequence[int], handles: Iterable[str]
    ) -> list[str]:
        """Control edges from earlier uses of variables that a home node writes.

        The node's own edges need not tell them: what orders them on its home may not
        be emitted on others.
        """
        edges: dict[str, None] = {}
        for handle in handles:
            for name in self._earlier.get((node.name, handle), ()):
                for replica in replicas:
                    edges |= dict.fromkeys(self._after(replica, name))
        return list(edges)

    def _copied(self, node: str) -> list[str]:
        """Handles that a home node writes and of which others have copies."""
        home = self._homes[node]
        if self._received is not None:
            return [h for h in self._written[node] if (node, h) in self._received]
        assert home != ELSEWHERE
        return [
            handle
            for handle in self._written[node]
            if any(
                self._resolve(r, handle) != self._resolve(home, handle)
                for r in self._replicas
            )
        ]

    def _refresh_name(self, node: str, handle: str, holder: int) -> str:
        replica_id = self._topology.replica_id(holder)
        return f"replica_{replica_id}/{node}/refresh_{handle}"

    def _refresh(self, node: Node, sharing: Mapping[int, Sequence[int]]) -> list[Any]:
        """Copies what a home node wrote to the variables of the other holders."""
        home = self._homes[node.name]
        nodes = []
        for handle in self._copied(node.name):
            if home == ELSEWHERE:
                assert self._received is not None
                value = self._received[node.name, handle]
            else:
                value = f"{self.new(node.name, handle)}:value:0"
                nodes.append(self._read_new(node, home, handle))
            nodes += [
                self._assign(node, holder, replicas, handle, value)
                for holder, replicas in sharing.items()
                if holder != home
            ]
        return nodes

    def _read_new(self, node: Node, home: int, handle: str) -> Any:
        """Reads a variable on its home, after the node that writes it."""
        return make_node(
            self.new(node.name, handle),
            "ReadVariableOp",
            [self._resolve(home, handle)],
            self._handle_device(home, handle) or "",
            {"dtype": self._handle_dtype(handle)},
            controls=[self.name(home, node.name)],
        )

    def _assign(
        self,
        node: Node,
        holder: int,
        replicas: Sequence[int],
        handle: str,
        value: Ref | str,
    ) -> Any:
        """Gives the copy of a holder its new value, once nobody needs the old one."""
        waits = dict.fromkeys(self._controls(node, replicas))
        waits |= dict.fromkeys(self._before(node, replicas, [handle]))
        return make_node(
            self._refresh_name(node.name, handle, holder),
            "AssignVariableOp",
            [self._resolve(holder, handle), value],
            self._handle_device(holder, handle) or "",
            {"dtype": self._handle_dtype(handle)},
            controls=[edge.removeprefix("^") for edge in waits],
        )

    def _device(self, node: Node, replica: int) -> str:
        for ref in node.inputs:
            device = self._handle_device(replica, ref.node)
            if device is not None:
                return device
        return self._localizer.device(node.proto.device, replica)
