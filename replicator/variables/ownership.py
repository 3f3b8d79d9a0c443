"""Ownership: which replica updates a variable, and keeps its optimizer state.

Owners have whole variables: Keras has no optimizer for slices, and with
slices a checkpoint would be one of R shards.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import handles as _tf_handles
from replicator.core import context

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from replicator.core.topology import Topology


class Owner(NamedTuple):
    """One of the replicas of a job that keep a copy of mirrored variables."""

    primary: int  # The replica, counted within its program.
    program_id: int  # The program.


class Ownership:
    """Owners, assigned alike in all programs; empty without sharded updates."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        # Weak: variables may be freed, and others get their ids.
        self._owners: dict[int, tuple[weakref.ref[Any], Owner]] = {}
        self._slots: dict[int, tuple[weakref.ref[Any], Owner]] = {}
        self._stored: set[int] = set()  # Ids of those that exist once.

    def _all_owners(self) -> list[Owner]:
        programs = range(self._topology.num_programs)
        primaries = dict.fromkeys(self._topology.primaries)
        return [
            Owner(primary, program) for primary in primaries for program in programs
        ]

    def assign(self, variables: Sequence[Any]) -> None:
        """Gives each variable to the owner on its device with the fewest bytes."""
        # Programs do not talk about it, so ties must fall the same way in all of them:
        # to the first owner, among variables of one size in the order that was given.
        loads: dict[int, dict[Owner, int]] = {}
        for variable in sorted(variables, key=num_bytes, reverse=True):
            logical_device = self._topology.logical_device_of(variable.device)
            load = loads.setdefault(
                logical_device, dict.fromkeys(self._all_owners(), 0)
            )
            owner = _find(self._owners, variable)
            if owner is None:
                owner = min(load, key=lambda candidate: (load[candidate], candidate))
                self._owners[id(variable)] = weakref.ref(variable), owner
                self._stored.discard(id(variable))  # of one that was freed
            load[owner] += num_bytes(variable)

    def store(self, variables: Iterable[Any]) -> None:
        """Makes variables exist once, on their owners' devices, after ``settle``."""
        if self._topology.is_shared:
            return
        self._stored.update(map(id, variables))

    def settle(self) -> bool:
        """Moves stored variables to their owners; says whether any was elsewhere."""
        alive = (reference() for reference, _ in self._owners.values())
        stored = [v for v in alive if v is not None and id(v) in self._stored]
        away = [v for v in stored if v.device != self.device(v)]
        for variable in away:
            with context.allowed():
                _tf_handles.move(variable, self.device(variable))
        return bool(away)

    def own_slot(self, slot: Any, variable: Any) -> None:
        """Makes optimizer state exist once, on the owner of its variable."""
        owner = _find(self._owners, variable)
        assert owner is not None
        self._slots[id(slot)] = weakref.ref(slot), owner
        if self.is_elsewhere(slot):
            release(slot)

    def device(self, variable: Any) -> str:
        """The device for state of a variable, if its owner is in this program."""
        owner = _find(self._owners, variable)
        assert owner is not None
        logical_device = self._topology.logical_device_of(variable.device)
        is_here = owner.program_id == self._topology.program_id
        return self._topology.devices[owner.primary if is_here else 0][logical_device]

    def owner(self, variable: Any) -> Owner | None:
        """The replica that writes a variable; None if every replica writes its copy."""
        return _find(self._owners, variable) or _find(self._slots, variable)

    def is_slot(self, variable: Any) -> bool:
        """Whether a variable exists once, for all replicas."""
        return _find(self._slots, variable) is not None

    def is_stored(self, variable: Any) -> bool:
        """Whether a variable that steps read everywhere exists once."""
        is_owned = _find(self._owners, variable) is not None
        return is_owned and id(variable) in self._stored

    def is_elsewhere(self, variable: Any) -> bool:
        """Whether a variable exists in another program only."""
        owner = _find(self._slots, variable)
        return owner is not None and owner.program_id != self._topology.program_id

    def release(self, variables: Iterable[Any]) -> None:
        """Frees the memory of those variables that belong elsewhere."""
        for variable in variables:
            if self.is_elsewhere(variable):
                release(variable)

    def held(self) -> list[tuple[int, int, int]]:
        """By owner and logical device: bytes of variables and of state, the device."""
        places = {
            device: logical_device
            for devices in self._topology.devices
            for logical_device, device in enumerate(devices)
        }

        def on(variables: Iterable[Any], logical_device: int) -> int:
            mine = (v for v in variables if places.get(v.device, 0) == logical_device)
            return sum(map(num_bytes, mine))

        return [
            (
                on(_alive(self._owners, one), logical_device),
                on(_alive(self._slots, one), logical_device),
                logical_device,
            )
            for one in self._all_owners()
            for logical_device in range(self._topology.num_logical_devices)
        ]

    def explain(self) -> str:
        """One line per owner: variables, their bytes and those of their state."""
        if not self._owners:
            return ""
        everyone = self._all_owners()
        if len(everyone) == 1:
            return (
                "sharded update: no effect, because replicas share one copy of every "
                "variable and of its optimizer state"
            )
        lines = []
        for one in sorted(
            everyone, key=lambda owner: (owner.program_id, owner.primary)
        ):
            mine = _alive(self._owners, one)
            slots = _alive(self._slots, one)
            does = "stores and updates" if self._stored else "updates"
            lines.append(
                f"sharded update: {self._name(one)} {does} "
                f"{len(mine)} variables of {sum(map(num_bytes, mine))} bytes and keeps "
                f"{sum(map(num_bytes, slots))} bytes of optimizer state"
            )
        return "\n".join(lines)

    def _name(self, owner: Owner) -> str:
        if owner.program_id == self._topology.program_id:
            return self._topology.replica_devices[owner.primary]
        local = list(dict.fromkeys(self._topology.primaries)).index(owner.primary)
        return f"worker {owner.program_id}, device {local},"


def num_bytes(variable: Any) -> int:
    """Size of a variable; of one whose shape may change, its size now."""
    shape = variable.shape
    if not shape.is_fully_defined():
        shape = variable.read_value().shape
    return int(shape.num_elements() * variable.dtype.size)


def fill(variable: Any, value: tf.Tensor) -> None:
    """Sets a variable that may have been released."""
    with tf.init_scope(), tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(
            resource=_tf_compat.handle(variable), value=tf.identity(value)
        )


def release(variable: Any) -> None:
    """Frees the memory of a variable, which has no elements until it is set again."""
    fill(variable, tf.constant(np.zeros([0], variable.dtype.as_numpy_dtype)))


def _find(owners: Mapping[int, tuple[Any, Owner]], variable: Any) -> Owner | None:
    reference, owner = owners.get(id(variable), (None, None))
    return owner if reference is not None and reference() is variable else None


def _alive(owners: Mapping[int, tuple[Any, Owner]], one: Owner) -> list[Any]:
    variables = (reference() for reference, owner in owners.values() if owner == one)
    return [variable for variable in variables if variable is not None]
