"""Replicate: copy the single-device nodes once per replica.

A pure function of graphs: nodes get a ``replica_<r>/`` name, the replica's device and
the replica's copies of variables; random ops get the replica's seed. Where replicas
share memory, invariant nodes (same value on every replica) are emitted once; such a
node waits for whatever it would have waited for on any replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat
from replicator.engine.body import Ref
from replicator.engine.effects import EffectTable
from replicator.engine.optimize import called_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from replicator.engine.body import Body, Node

    # (replica_id, placeholder) -> what stands for it, a Ref or a function argument
    Resolve = Callable[[int, str], Ref | str]
    # (replica_id, placeholder) -> device of the variable behind a handle, or None
    HandleDevice = Callable[[int, str], str | None]

_SEED_STEP = 0x9E3779B1
_SEED_LIMIT = 0x7FFFFFFF


class Replicas:
    """Copies of a body.

    Attributes:
      library: Functions that the copies call, those with random ops once per replica.
    """

    def __init__(
        self,
        body: Body,
        devices: Sequence[str],
        *,
        merged: Collection[str],
        resolve: Resolve,
        handle_device: HandleDevice,
    ) -> None:
        self._body = body
        self._devices = tuple(devices)
        self._specs = [tf.DeviceSpec.from_string(device) for device in devices]
        self._merged = frozenset(merged)
        self._resolve = resolve
        self._handle_device = handle_device
        self._effects = EffectTable(body.library)
        self.library: list[Any] = list(body.library)
        for replica_id in range(1, len(self._devices)):
            self.library += [
                self._clone_function(function, replica_id)
                for function in body.library
                if self._effects.has_random(function.signature.name)
            ]

    def name(self, replica_id: int, node: str) -> str:
        """Name of a node on a replica."""
        owner = 0 if node in self._merged else replica_id
        return f"replica_{owner}/{node}"

    def ref(self, replica_id: int, ref: Ref) -> Ref | str:
        """A tensor of the single-device graph as it is on a replica."""
        if ref.node in self._body.placeholders:
            return self._resolve(replica_id, ref.node)
        return Ref(node=self.name(replica_id, ref.node), port=ref.port)

    def nodes(self) -> list[Any]:
        """All nodes of all replicas as ``NodeDef``s."""
        copies = []
        for node in self._body.nodes:
            if node.name in self._merged:
                copies.append(self._copy(node, 0, range(len(self._devices))))
            else:
                copies += [
                    self._copy(node, replica_id, [replica_id])
                    for replica_id in range(len(self._devices))
                ]
        return copies

    def _copy(self, node: Node, replica_id: int, waits_for: Sequence[int]) -> Any:
        proto = _tf_compat.NodeDef()
        proto.CopyFrom(node.proto)
        proto.name = self.name(replica_id, node.name)
        proto.device = self._device(node, replica_id)
        # Colocation is spelled out by devices; names in it would be stale.
        proto.attr.pop("_class", None)
        del proto.input[:]
        proto.input.extend(str(self.ref(replica_id, ref)) for ref in node.inputs)
        proto.input.extend(self._controls(node, waits_for))
        if replica_id:
            self._fold_seeds(proto, replica_id)
        return proto

    def _controls(self, node: Node, replica_ids: Sequence[int]) -> list[str]:
        edges: dict[str, None] = {}
        for control in node.controls:
            for replica_id in replica_ids:
                if control in self._body.placeholders:
                    target = self._resolve(replica_id, control)
                    if isinstance(target, str):
                        continue  # arguments are there before anything runs
                    edges[f"^{target.node}"] = None
                else:
                    edges[f"^{self.name(replica_id, control)}"] = None
        return list(edges)

    def _device(self, node: Node, replica_id: int) -> str:
        for ref in node.inputs:
            device = self._handle_device(replica_id, ref.node)
            if device is not None:
                return device
        mine = self._specs[replica_id]
        if node.proto.device:
            asked = tf.DeviceSpec.from_string(node.proto.device)
            if asked.device_type not in (None, mine.device_type):
                # Not the replica's own index: GPU:1 does not imply that CPU:1 exists.
                index = asked.device_index or 0
                other = mine.replace(device_type=asked.device_type, device_index=index)
                return str(other.to_string())
        return self._devices[replica_id]

    def _fold_seeds(self, proto: Any, replica_id: int) -> None:
        if "seed2" in proto.attr and "seed" in proto.attr:
            _fold_seed(proto, replica_id)
        for called in called_functions(proto):
            if self._is_cloned(called.name):
                called.name = _clone_name(called.name, replica_id)
        if self._is_cloned(proto.op):
            proto.op = _clone_name(proto.op, replica_id)

    def _is_cloned(self, name: str) -> bool:
        known = any(f.signature.name == name for f in self._body.library)
        return known and self._effects.has_random(name)

    def _clone_function(self, function: Any, replica_id: int) -> Any:
        clone = _tf_compat.FunctionDef()
        clone.CopyFrom(function)
        clone.signature.name = _clone_name(function.signature.name, replica_id)
        for proto in clone.node_def:
            self._fold_seeds(proto, replica_id)
        return clone


def _fold_seed(proto: Any, replica_id: int) -> None:
    """Gives a stateful random op the stream of its replica; 0, 0 means no seed."""
    seed, seed2 = proto.attr["seed"].i, proto.attr["seed2"].i
    if seed == 0 and seed2 == 0:
        return
    folded = (seed2 + replica_id * _SEED_STEP) & _SEED_LIMIT
    proto.attr["seed2"].i = folded if (seed or folded) else replica_id


def _clone_name(name: str, replica_id: int) -> str:
    return f"{name}_replica_{replica_id}"
