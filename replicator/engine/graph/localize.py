"""Localize: adapts a copied node to one replica.

A replica has its own devices, its own random streams, its own calls of Python, and its
own copies of the functions that use any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator._tf import python_calls as _tf_python_calls
from replicator.engine.graph.effects import EffectTable
from replicator.engine.graph.replica_devices import ReplicaDevices
from replicator.engine.graph.stamps import called_functions
from replicator.step import logical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.placement.topology import Topology

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
        self._effects = EffectTable(library)
        self._names = {function.signature.name for function in library}
        self._placed = _placed_functions(library)
        self._tokens = [
            _tf_python_calls.OwnTokens() for _ in range(topology.num_local_replicas)
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
        if name not in self._names:
            return False
        if name in self._placed:
            return True
        return bool(self._topology.replica_id(replica)) and self._effects.is_bound(name)

    def _own_function(self, function: Any, replica: int) -> Any:
        own = _tf_compat.FunctionDef()
        own.CopyFrom(function)
        own.signature.name = self._own_name(function.signature.name, replica)
        for proto in own.node_def:
            if logical.index_of(proto.device) is not None:
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


def _placed_functions(library: Sequence[Any]) -> frozenset[str]:
    """Functions that use logical devices, themselves or through those they call."""
    placed: set[str] = set()
    while True:
        found = {
            function.signature.name
            for function in library
            if any(
                logical.index_of(proto.device) is not None
                or proto.op in placed
                or any(called.name in placed for called in called_functions(proto))
                for proto in function.node_def
            )
        }
        if found == placed:
            return frozenset(placed)
        placed = found
