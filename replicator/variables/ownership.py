"""Ownership: which replica updates a variable, and keeps its optimizer state."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from replicator.placement.topology import Topology


class Owner(NamedTuple):
    """One of the replicas of a job that keep a copy of mirrored variables.

    Attributes:
      primary: The replica, counted within its program.
      program_id: The program.
    """

    primary: int
    program_id: int


class Ownership:
    """Owners of the variables of one replicator; empty without sharded updates.

    All programs of a job assign the same owners, as they see the same variables in the
    same order.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        # Weak: variables may be freed, and others get their ids.
        self._owners: dict[int, tuple[weakref.ref[Any], Owner]] = {}
        self._slots: dict[int, tuple[weakref.ref[Any], Owner]] = {}

    def _all_owners(self) -> list[Owner]:
        programs = range(self._topology.num_programs)
        primaries = dict.fromkeys(self._topology.primaries)
        return [
            Owner(primary, program) for primary in primaries for program in programs
        ]

    def assign(self, variables: Sequence[Any]) -> None:
        """Gives each variable to the owner with the fewest bytes, largest first."""
        load = dict.fromkeys(self._all_owners(), 0)
        for variable in sorted(variables, key=num_bytes, reverse=True):
            owner = _find(self._owners, variable)
            if owner is None:
                owner = min(load, key=lambda candidate: (load[candidate], candidate))
                self._owners[id(variable)] = weakref.ref(variable), owner
            load[owner] += num_bytes(variable)

    def own_slot(self, slot: Any, variable: Any) -> None:
        """Lets optimizer state exist once, with the owner of its variable."""
        owner = _find(self._owners, variable)
        assert owner is not None
        self._slots[id(slot)] = weakref.ref(slot), owner
        if self.is_elsewhere(slot):
            release(slot)

    def device(self, variable: Any) -> str:
        """The device on which state of a variable belongs, if its owner is here."""
        owner = _find(self._owners, variable)
        assert owner is not None
        place = self._topology.logical_device_of(variable.device)
        is_here = owner.program_id == self._topology.program_id
        return self._topology.devices[owner.primary if is_here else 0][place]

    def owner(self, variable: Any) -> Owner | None:
        """Who writes a variable; None where every copy is written."""
        return _find(self._owners, variable) or _find(self._slots, variable)

    def is_slot(self, variable: Any) -> bool:
        """Whether a variable exists once, for all replicas."""
        return _find(self._slots, variable) is not None

    def is_elsewhere(self, variable: Any) -> bool:
        """Whether a variable exists in another program only."""
        owner = _find(self._slots, variable)
        return owner is not None and owner.program_id != self._topology.program_id

    def release(self, variables: Iterable[Any]) -> None:
        """Frees the memory of those variables that belong elsewhere."""
        for variable in variables:
            if self.is_elsewhere(variable):
                release(variable)

    def explain(self) -> str:
        """One line per owner: variables, their bytes and those of their state."""
        if not self._owners:
            return ""
        everyone = self._all_owners()
        if len(everyone) == 1:
            return (
                "sharded update: replicas share one copy of every variable, so there "
                "is one update and one copy of its state anyway"
            )
        lines = []
        for one in sorted(
            everyone, key=lambda owner: (owner.program_id, owner.primary)
        ):
            mine = _alive(self._owners, one)
            slots = _alive(self._slots, one)
            lines.append(
                f"sharded update: {self._name(one)} updates "
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
    """Size of a variable of static shape."""
    return int(variable.shape.num_elements() * variable.dtype.size)


def fill(variable: Any, value: tf.Tensor) -> None:
    """Sets a variable that may have been released."""
    with tf.init_scope(), tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(
            resource=_tf_compat.handle(variable), value=tf.identity(value)
        )


def release(variable: Any) -> None:
    """Frees the memory of a variable, which is without elements until it is set."""
    fill(variable, tf.constant(np.zeros([0], variable.dtype.as_numpy_dtype)))


def _find(owners: Mapping[int, tuple[Any, Owner]], variable: Any) -> Owner | None:
    reference, owner = owners.get(id(variable), (None, None))
    return owner if reference is not None and reference() is variable else None


def _alive(owners: Mapping[int, tuple[Any, Owner]], one: Owner) -> list[Any]:
    found = (reference() for reference, owner in owners.values() if owner == one)
    return [variable for variable in found if variable is not None]
