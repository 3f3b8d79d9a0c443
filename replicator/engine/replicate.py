"""Replicate: copy the single-device nodes once per replica.

A pure function of graphs: nodes get a ``replica_<r>/`` name, the replica's device and
the replica's copies of variables; random ops get the replica's seed. Where replicas
share memory, invariant nodes (same value on every replica) are emitted once per copy
of the mirrored variables; such a node waits for whatever it would have waited for on
any replica that uses the copy.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import handles as _tf_handles
from replicator.core import context
from replicator.engine import body as body_lib
from replicator.engine.liveness import REMOTE, Liveness
from replicator.engine.optimize import ReplicaDevices

if TYPE_CHECKING:
    from replicator.core.devices import Topology

    Resolve = Callable[[int, str], body_lib.Ref | str]
    HandleDevice = Callable[[int, str], str | None]
    HandleDtype = Callable[[str], tf.DType]
    Edges = dict[str, None]  # Control edges in their order, each once.


_SEED_STEP = 0x9E3779B1
_SEED_LIMIT = 0x7FFFFFFF


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


# An owned write runs on one replica for all. Whatever waits for it on another replica
# waits for the copy of its result, or for what the write itself would have waited for.


class Replicas:
    """Copies of a body: the nodes that exist, their names and their control edges."""

    def __init__(
        self,
        body: body_lib.Body,
        topology: Topology,
        *,
        merged: Collection[str],
        liveness: Liveness | None = None,
        resolve: Resolve,
        handle_device: HandleDevice,
        handle_dtype: HandleDtype | None = None,
        received: Mapping[tuple[str, str], body_lib.Ref | str] | None = None,
    ) -> None:
        self._nodes = {node.name: node for node in body.nodes}
        self._placeholders = body.placeholders
        self._topology = topology
        self._replicas = range(topology.num_local_replicas)
        self._merged = frozenset(merged)
        self._live = liveness or Liveness()
        self._resolve = resolve
        self._handle_device = handle_device
        self._handle_dtype = handle_dtype or (lambda _: tf.float32)
        # The values after owned writes, as they came from the programs that write.
        self._received = received
        # A replica has its own devices, its own random streams, its own calls of
        # Python, and its own copies of the functions that use any of them.
        self._devices = ReplicaDevices(topology)
        self._tokens: Mapping[int, _tf_handles.OwnTokens] = collections.defaultdict(
            _tf_handles.OwnTokens
        )
        self._functions = {function.signature.name for function in body.library}
        # What uses logical devices, and what is bound to one replica: it draws from a
        # stateful random stream, or calls Python, which keeps what the gradient of the
        # call needs.
        self._placed = body_lib.functions_with(body.library, _is_placed)
        self._bound = body_lib.functions_with(body.library, _is_bound)
        # Functions that the copies call: the traced ones, and those that replicas have
        # of their own.
        self.library = [f for f in body.library if f.signature.name not in self._placed]
        self.library += [
            self._own_function(function, replica)
            for replica in self._replicas
            for function in body.library
            if self._has_own(function.signature.name, replica)
        ]
        self._waits: dict[tuple[int, str], list[str]] = {}
        self._sharing: dict[int, list[int]] = {}
        for replica, primary in enumerate(topology.primaries):
            self._sharing.setdefault(primary, []).append(replica)

    def ref(self, replica: int, ref: body_lib.Ref) -> body_lib.Ref | str:
        """A tensor of the single-device graph as it is on a replica."""
        if ref.node in self._placeholders:
            return self._resolve(replica, ref.node)
        return body_lib.Ref(node=self.name(replica, ref.node), port=ref.port)

    def name(self, replica: int, node: str) -> str:
        owner = self._topology.primaries[replica] if node in self._merged else replica
        owner = self._live.assigned_replica.get(node, owner)
        owner = self._live.writers.get(node, owner)
        return f"replica_{self._topology.replica_id(owner)}/{node}"

    def new(self, node: str, handle: str) -> str:
        """Name of the node that reads the result of an owned write."""
        return f"{self.name(0, node)}/new_{handle}"

    def effects(self, node: str) -> list[str]:
        """Names of the nodes that have the effect of a node on all replicas."""
        edges = self._all_after(self._replicas, [node])
        return [edge.removeprefix("^") for edge in edges]

    def nodes(self) -> list[Any]:
        nodes: list[Any] = []
        for node in self._nodes.values():
            # Whether copies differ in more than names, devices and inputs.
            is_local = (
                "seed2" in node.proto.attr
                or "token" in node.proto.attr
                or node.proto.op in self._functions
                or bool(body_lib.called_functions(node.proto))
            )
            for replica, replicas in self._copies(node.name).items():
                copy = self._copy(node, replica, replicas)
                if is_local:
                    self._localize(copy, replica)
                nodes.append(copy)
            if node.name in self._live.writers:
                nodes += self._refresh(node)
        return nodes

    def _localize(self, proto: Any, replica: int) -> None:
        """Gives a node the random stream and the functions of a replica, in place."""
        replica_id = self._topology.replica_id(replica)
        if replica_id and "seed2" in proto.attr and "seed" in proto.attr:
            _fold_seed(proto, replica_id)
        if replica_id and "token" in proto.attr:
            tokens = self._tokens[replica]
            proto.attr["token"].s = tokens.own(proto.attr["token"].s)
        for called in body_lib.called_functions(proto):
            if self._has_own(called.name, replica):
                called.name = f"{called.name}_replica_{replica_id}"
        if self._has_own(proto.op, replica):
            proto.op = f"{proto.op}_replica_{replica_id}"

    def _has_own(self, name: str, replica: int) -> bool:
        """Whether a replica needs a function of its own instead of the traced one."""
        is_first = not self._topology.replica_id(replica)
        return name in self._placed or (name in self._bound and not is_first)

    def _own_function(self, function: Any, replica: int) -> Any:
        own = _tf_compat.FunctionDef()
        own.CopyFrom(function)
        own.signature.name += f"_replica_{self._topology.replica_id(replica)}"
        for proto in own.node_def:
            if _is_placed(proto):
                proto.device = self._devices.device(proto.device, replica)
            self._localize(proto, replica)
        return own

    def _copies(self, node: str) -> Mapping[int, Sequence[int]]:
        """By replica that has a copy of a node, the replicas for which it stands."""
        writer = self._live.writers.get(node)
        if writer is not None:
            # Others may read what exists once: it waits for all of them.
            return {} if writer == REMOTE else {writer: self._replicas}
        if node not in self._merged:
            return {replica: [replica] for replica in self._replicas}
        emitted = self._live.emitted.get(node, self._sharing)
        return {p: replicas for p, replicas in self._sharing.items() if p in emitted}

    def _copy(self, node: body_lib.Node, replica: int, waits_for: Sequence[int]) -> Any:
        devices = (self._handle_device(replica, ref.node) for ref in node.inputs)
        device = next((name for name in devices if name is not None), None)
        if device is None:
            device = self._devices.device(node.proto.device, replica)
        proto = _tf_compat.NodeDef()
        proto.CopyFrom(node.proto)
        proto.name, proto.device = self.name(replica, node.name), device
        proto.input[:] = [str(self.ref(replica, ref)) for ref in node.inputs]
        # Colocation is spelled out by devices; names in it would be stale.
        proto.attr.pop("_class", None)
        edges = self._controls(node, waits_for)
        if node.name in self._live.writers:
            # What nobody else has a copy of: nobody else assigns it.
            copied = self._copied(node.name)
            for handle in self._live.written[node.name]:
                if handle not in copied:
                    edges |= self._before(node.name, waits_for, handle)
        proto.input.extend(edges)
        return proto

    def _refresh(self, node: body_lib.Node) -> list[Any]:
        """Copies the result of an owned write to the variables of other primaries."""
        nodes, writer = [], self._live.writers[node.name]
        for handle in self._copied(node.name):
            dtype = {"dtype": self._handle_dtype(handle)}
            value: body_lib.Ref | str = f"{self.new(node.name, handle)}:value:0"
            if writer == REMOTE:
                assert self._received is not None
                value = self._received[node.name, handle]
            else:
                nodes.append(
                    body_lib.make_node(
                        self.new(node.name, handle),
                        "ReadVariableOp",
                        [self._resolve(writer, handle)],
                        self._handle_device(writer, handle) or "",
                        dtype,
                        [self.name(writer, node.name)],
                    )
                )
            for primary, replicas in self._sharing.items():
                if primary == writer:
                    continue
                # Once nobody needs the old value.
                waits = self._controls(node, replicas)
                waits |= self._before(node.name, replicas, handle)
                nodes.append(
                    body_lib.make_node(
                        self._refresh_name(node.name, handle, primary),
                        "AssignVariableOp",
                        [self._resolve(primary, handle), value],
                        self._handle_device(primary, handle) or "",
                        dtype,
                        [edge.removeprefix("^") for edge in waits],
                    )
                )
        return nodes

    def _refresh_name(self, node: str, handle: str, primary: int) -> str:
        replica_id = self._topology.replica_id(primary)
        return f"replica_{replica_id}/{node}/refresh_{handle}"

    def _copied(self, node: str) -> list[str]:
        """Handles that an owned write changes and other primaries have copies of."""
        writer, written = self._live.writers[node], self._live.written[node]
        if self._received is not None:
            return [h for h in written if (node, h) in self._received]
        assert writer != REMOTE
        return [
            handle
            for handle in written
            if len({self._resolve(r, handle) for r in self._replicas}) > 1
        ]

    def _controls(self, node: body_lib.Node, replicas: Sequence[int]) -> Edges:
        """Control edges of a node's copy that waits for some replicas."""
        edges: Edges = {}
        for control in node.controls:
            if control not in self._placeholders:
                edges |= self._all_after(replicas, [control])
                continue
            targets = (self._resolve(replica, control) for replica in replicas)
            # Arguments of the function are there before anything runs.
            refs = (target for target in targets if isinstance(target, body_lib.Ref))
            edges |= {f"^{ref.node}": None for ref in refs}
        return edges

    def _before(self, node: str, replicas: Sequence[int], handle: str) -> Edges:
        """Control edges from earlier uses of a variable that an owned write changes."""
        # The node's own edges need not include them: the nodes that order them on the
        # writer may not be emitted on other replicas.
        return self._all_after(replicas, self._live.earlier.get((node, handle), ()))

    def _all_after(self, replicas: Sequence[int], names: Sequence[str]) -> Edges:
        return {
            edge: None
            for name in names
            for replica in replicas
            for edge in self._after(replica, name)
        }

    def _after(self, replica: int, node: str) -> list[str]:
        """Control edges that make a replica wait for the effect of a node."""
        primary = self._topology.primaries[replica]
        writer = self._live.writers.get(node)
        name = f"^{self.name(replica, node)}"
        if writer is None:
            where = self._live.assigned_replica.get(node, primary)
            emitted = self._live.emitted.get(node, self._sharing)
            is_here = node not in self._merged or where in emitted
            return [name] if is_here else self._through(replica, node)
        copied = self._copied(node)
        if writer == primary:
            # Its value must have been read before it changes again.
            return [name, *(f"^{self.new(node, handle)}" for handle in copied)]
        if copied:
            return [f"^{self._refresh_name(node, h, primary)}" for h in copied]
        # Without copies nothing here waits for what the node would have waited for.
        own = [] if writer == REMOTE else [name]
        return [*own, *self._through(replica, node)]

    def _through(self, replica: int, node: str) -> list[str]:
        """What a node that a replica does not have would have waited for there."""
        # The graph optimizer leaves out an edge that another way says already, and that
        # way may lead through such a node.
        if (replica, node) not in self._waits:
            names = [
                name
                for name in body_lib.before_of(self._nodes[node])
                if name not in self._placeholders
            ]
            self._waits[replica, node] = [*self._all_after([replica], names)]
        return self._waits[replica, node]
