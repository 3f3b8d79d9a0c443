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
from replicator._tf import handles as _tf_handles
from replicator.core import context
from replicator.engine.graph.body import (
    Ref,
    called_functions,
    functions_with,
    make_node,
    rewrite,
)
from replicator.engine.graph.liveness import REMOTE, Liveness
from replicator.engine.graph.optimize import ReplicaDevices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from replicator.core.topology import Topology
    from replicator.engine.graph.body import Body, Node

    Resolve = Callable[[int, str], Ref | str]
    HandleDevice = Callable[[int, str], str | None]
    HandleDtype = Callable[[str], tf.DType]


# An owned write runs on one replica for all. Whatever waits for it on another replica
# waits for the copy of its result, or for what the write itself would have waited for.


class CopyOrder:
    """Which copies of a body's nodes exist, their names and their control edges."""

    def __init__(
        self,
        body: Body,
        topology: Topology,
        *,
        merged: Collection[str],
        liveness: Liveness | None,
        resolve: Resolve,
        received: Mapping[tuple[str, str], Ref | str] | None,
    ) -> None:
        """Prepares; see ``Replicas`` for the arguments."""
        self._body = body
        self._topology = topology
        self._replicas = range(topology.num_local_replicas)
        self._merged = frozenset(merged)
        live = liveness or Liveness(
            emitted={}, writers={}, written={}, earlier={}, results={}
        )
        self._writers, self._written = live.writers, live.written
        self._emitted, self._assigned_replica = live.emitted, live.assigned_replica
        self._earlier = live.earlier
        self._resolve = resolve
        self._received = received
        self._inputs = {
            node.name: ([ref.node for ref in node.inputs], node.controls)
            for node in body.nodes
        }
        self._waits: dict[tuple[int, str], list[str]] = {}
        primaries = topology.primaries
        self.sharing: dict[int, Sequence[int]] = {
            primary: [r for r in self._replicas if primaries[r] == primary]
            for primary in dict.fromkeys(primaries)
        }

    def writer(self, node: str) -> int | None:
        """The replica that runs an owned write, or ``REMOTE``; None for others."""
        return self._writers.get(node)

    def copies(self, node: str) -> dict[int, Sequence[int]]:
        """By replica that has a copy of a node, the replicas for which it stands."""
        writer = self.writer(node)
        if writer is not None:
            # Others may read what exists once: it waits for all of them.
            return {} if writer == REMOTE else {writer: self._replicas}
        if node not in self._merged:
            return {replica: [replica] for replica in self._replicas}
        emitted = self._emitted.get(node, self.sharing)
        return {p: replicas for p, replicas in self.sharing.items() if p in emitted}

    def name(self, replica: int, node: str) -> str:
        """Name of a node on a replica of this program."""
        owner = self._topology.primaries[replica] if node in self._merged else replica
        owner = self._writers.get(node, self._assigned_replica.get(node, owner))
        return f"replica_{self._topology.replica_id(owner)}/{node}"

    def new(self, node: str, handle: str) -> str:
        """Name of the node that reads the result of an owned write."""
        return f"{self.name(0, node)}/new_{handle}"

    def refresh_name(self, node: str, handle: str, primary: int) -> str:
        """Name of the node that gives a primary's copy the result of an owned write."""
        replica_id = self._topology.replica_id(primary)
        return f"replica_{replica_id}/{node}/refresh_{handle}"

    def effects(self, node: str) -> list[str]:
        """Names of the nodes that have the effect of a node on all replicas."""
        edges = [edge for r in self._replicas for edge in self.after(r, node)]
        return list(dict.fromkeys(edge.removeprefix("^") for edge in edges))

    def controls(self, node: Node, replicas: Sequence[int]) -> list[str]:
        """Control edges of a node's copy that waits for some replicas."""
        edges: dict[str, None] = {}
        for control in node.controls:
            for replica in replicas:
                if control in self._body.placeholders:
                    target = self._resolve(replica, control)
                    if isinstance(target, str):
                        continue  # arguments are there before anything runs
                    edges[f"^{target.node}"] = None
                else:
                    edges |= dict.fromkeys(self.after(replica, control))
        return list(edges)

    def after(self, replica: int, node: str) -> list[str]:
        """Control edges that make a replica wait for the effect of a node."""
        primary, writer = self._topology.primaries[replica], self.writer(node)
        if writer is None:
            where = self._assigned_replica.get(node, primary)
            emitted = self._emitted.get(node, self.sharing)
            if node not in self._merged or where in emitted:
                return [f"^{self.name(replica, node)}"]
            return self._through(replica, node)
        if writer == primary:
            # Its value must have been read before it changes again.
            new = [f"^{self.new(node, h)}" for h in self.copied(node)]
            return [f"^{self.name(replica, node)}", *new]
        copied = [f"^{self.refresh_name(node, h, primary)}" for h in self.copied(node)]
        if copied:
            return copied
        # Without copies nothing here waits for what the node would have waited for.
        own = [] if writer == REMOTE else [f"^{self.name(replica, node)}"]
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
                for edge in self.after(replica, name)
            ]
            self._waits[replica, node] = list(dict.fromkeys(edges))
        return self._waits[replica, node]

    def before(
        self, node: Node, replicas: Sequence[int], handles: Iterable[str]
    ) -> list[str]:
        """Control edges from earlier uses of variables that an owned write changes.

        The node's own edges need not include them: the nodes that order them on the
        writer may not be emitted on other replicas.
        """
        edges: dict[str, None] = {}
        for handle in handles:
            for name in self._earlier.get((node.name, handle), ()):
                for replica in replicas:
                    edges |= dict.fromkeys(self.after(replica, name))
        return list(edges)

    def not_copied(self, node: str) -> list[str]:
        """Handles that an owned write changes and nobody else has a copy of."""
        copied = self.copied(node)
        return [handle for handle in self._written[node] if handle not in copied]

    def received(self, node: str, handle: str) -> Ref | str:
        """The value after an owned write, as it came from the program that writes."""
        assert self._received is not None
        return self._received[node, handle]

    def copied(self, node: str) -> list[str]:
        """Handles that an owned write changes and other primaries have copies of."""
        writer = self._writers[node]
        if self._received is not None:
            return [h for h in self._written[node] if (node, h) in self._received]
        assert writer != REMOTE
        return [
            handle
            for handle in self._written[node]
            if any(
                self._resolve(r, handle) != self._resolve(writer, handle)
                for r in self._replicas
            )
        ]


# A replica has its own devices, its own random streams, its own calls of Python, and
# its own copies of the functions that use any of them.

_SEED_STEP = 0x9E3779B1
_SEED_LIMIT = 0x7FFFFFFF


class Localizer:
    """Gives copied nodes the devices, random streams and functions of their replicas.

    Attributes:
      library: Functions that the copies call: the traced ones, and those that replicas
        have of their own.
    """

    def __init__(self, library: Sequence[Any], topology: Topology) -> None:
        self._topology = topology
        self._devices = ReplicaDevices(topology)
        self._names = {function.signature.name for function in library}
        # What uses logical devices, and what is bound to one replica: it draws from a
        # stateful random stream, or calls Python, which keeps what the gradient of the
        # call needs.
        self._placed = functions_with(library, _is_placed)
        self._bound = functions_with(library, _is_bound)
        self._tokens = [
            _tf_handles.OwnTokens() for _ in range(topology.num_local_replicas)
        ]
        self.library: list[Any] = [
            f for f in library if f.signature.name not in self._placed
        ]
        for replica in range(topology.num_local_replicas):
            self.library += [
                self._own_function(function, replica)
                for function in library
                if self._has_own(function.signature.name, replica)
            ]

    def device(self, requested: str, replica: int) -> str:
        """The device of a replica that a device of the traced graph stands for."""
        return self._devices.device(requested, replica)

    def is_local(self, proto: Any) -> bool:
        """Whether copies of a node differ in more than names, devices and inputs."""
        has_own = "seed2" in proto.attr or "token" in proto.attr
        return has_own or proto.op in self._names or bool(called_functions(proto))

    def localize(self, proto: Any, replica: int) -> None:
        """Gives a node the random stream and the functions of a replica, in place."""
        replica_id = self._topology.replica_id(replica)
        if replica_id and "seed2" in proto.attr and "seed" in proto.attr:
            _fold_seed(proto, replica_id)
        if replica_id and "token" in proto.attr:
            tokens = self._tokens[replica]
            proto.attr["token"].s = tokens.own(proto.attr["token"].s)
        for called in called_functions(proto):
            if self._has_own(called.name, replica):
                called.name = self._own_name(called.name, replica)
        if self._has_own(proto.op, replica):
            proto.op = self._own_name(proto.op, replica)

    def _has_own(self, name: str, replica: int) -> bool:
        """Whether a replica needs a function of its own instead of the traced one."""
        is_first = not self._topology.replica_id(replica)
        return name in self._placed or (name in self._bound and not is_first)

    def _own_function(self, function: Any, replica: int) -> Any:
        own = _tf_compat.FunctionDef()
        own.CopyFrom(function)
        own.signature.name = self._own_name(function.signature.name, replica)
        for proto in own.node_def:
            if context.logical_index(proto.device) is not None:
                proto.device = self.device(proto.device, replica)
            self.localize(proto, replica)
        return own

    def _own_name(self, name: str, replica: int) -> str:
        return f"{name}_replica_{self._topology.replica_id(replica)}"


def _fold_seed(proto: Any, replica_id: int) -> None:
    """Gives a stateful random op the stream of its replica; 0, 0 means no seed."""
    seed, seed2 = proto.attr["seed"].i, proto.attr["seed2"].i
    if seed == 0 and seed2 == 0:
        return
    folded = (seed2 + replica_id * _SEED_STEP) & _SEED_LIMIT
    proto.attr["seed2"].i = folded if (seed or folded) else replica_id


def _is_placed(proto: Any) -> bool:
    return context.logical_index(proto.device) is not None


def _is_bound(proto: Any) -> bool:
    if "seed" not in proto.attr and "token" not in proto.attr:
        return False
    definition = _tf_compat.op_def(proto.op)
    return bool(definition and definition.is_stateful)


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
            if writer == REMOTE:
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
