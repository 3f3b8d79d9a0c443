"""Ownership: which replica updates a variable, and keeps its optimizer state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.topology import Topology


class Ownership:
    """Owners of the variables of one replicator; empty without sharded updates.

    Owners are replicas of the program that keep a copy of mirrored variables.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._holders = tuple(dict.fromkeys(topology.holders))
        self._owners: dict[int, tuple[Any, int]] = {}
        self._slots: dict[int, tuple[Any, int]] = {}

    def assign(self, variables: Sequence[Any]) -> None:
        """Gives each variable to the owner with the fewest bytes, largest first."""
        load = dict.fromkeys(self._holders, 0)
        for variable, owner in self._owners.values():
            load[owner] += num_bytes(variable)
        for variable in sorted(variables, key=num_bytes, reverse=True):
            if id(variable) not in self._owners:
                owner = min(load, key=lambda holder: (load[holder], holder))
                load[owner] += num_bytes(variable)
                self._owners[id(variable)] = (variable, owner)

    def own_slot(self, slot: Any, variable: Any) -> None:
        """Lets optimizer state exist once, with the owner of its variable."""
        self._slots[id(slot)] = (slot, self._owners[id(variable)][1])

    def device(self, variable: Any) -> str:
        """The owner's device on which state of a variable belongs."""
        owner = self._owners[id(variable)][1]
        place = self._topology.logical_device_of(variable.device)
        return self._topology.devices[owner][place]

    def owner(self, variable: Any) -> int | None:
        """Who writes a variable; None where every copy is written."""
        found = self._owners.get(id(variable)) or self._slots.get(id(variable))
        return found[1] if found else None

    def is_slot(self, variable: Any) -> bool:
        """Whether a variable exists once, for all replicas."""
        return id(variable) in self._slots

    def explain(self) -> str:
        """One line per owner: variables, their bytes and those of their state."""
        if not self._owners:
            return ""
        if len(self._holders) == 1:
            return (
                "sharded update: replicas share one copy of every variable, so there "
                "is one update and one copy of its state anyway"
            )
        lines = []
        for holder in self._holders:
            mine = [v for v, owner in self._owners.values() if owner == holder]
            slots = [s for s, owner in self._slots.values() if owner == holder]
            lines.append(
                f"sharded update: {self._topology.replica_devices[holder]} updates "
                f"{len(mine)} variables of {sum(map(num_bytes, mine))} bytes and keeps "
                f"{sum(map(num_bytes, slots))} bytes of optimizer state"
            )
        return "\n".join(lines)


def num_bytes(variable: Any) -> int:
    """Size of a variable of static shape."""
    return int(variable.shape.num_elements() * variable.dtype.size)
