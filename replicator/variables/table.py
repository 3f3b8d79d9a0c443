"""The variable table: one copy of a variable per memory, or one per replica.

Of *mirrored* variables, replica 0 uses the user's own, and so do replicas that share
its memory; every other memory has a copy. Of the other kinds (``kinds``) each replica
has a copy; for *partial* variables, replica 0 uses the user's own. A variable with a
sharded update has an owner: the replica that updates it, and keeps its optimizer state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import handles as _tf_handles
from replicator.core import context
from replicator.variables import kinds
from replicator.variables.coherence import (
    CopyRefresher,
    is_compiled,
    state,
    was_written,
)

if TYPE_CHECKING:
    from replicator.core.devices import Topology

# Attributes of a variable: its entries, by table; whether others have its handle.
_ENTRIES = "_replicator_entries"
_IS_EXPOSED = "_replicator_is_exposed"
_ANYWHERE = contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A user's variable and the variables that replicas use in its place."""

    variable: Any  # The user's own.
    kind: kinds.Kind  # How the copies relate.
    # By replica of the program; the user's own may be among them, and replicas that
    # share memory share a copy of a mirrored variable.
    copies: tuple[Any, ...]
    # The state of the user's own variable with which the copies agree: its last value,
    # or a fingerprint of it for mirrored and partial variables; None if there are no
    # other copies.
    last_synced: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LocalState:
    """The replicas' values of a variable whose copies differ."""

    variable: Any  # The user's own.
    kind: kinds.Kind  # ``LOCAL`` or ``RANDOM``.
    values: tuple[Any, ...]  # NumPy arrays, by replica.


# Owners have whole variables: Keras has no optimizer for slices, and with slices a
# checkpoint would be one of R shards.


class Owner(NamedTuple):
    """One of the replicas of a job that keep a copy of mirrored variables."""

    primary: int  # The replica, counted within its program.
    program_id: int  # The program.


class Ownership:
    """Owners, assigned alike in all programs; empty without sharded updates."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.is_used = False  # Whether any variable has ever had an owner.
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
        self.is_used = True
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
        self.release([slot])

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
        for variable in filter(self.is_elsewhere, variables):
            # No elements until it is set again.
            nothing = np.zeros([0], variable.dtype.as_numpy_dtype)
            set_released(variable, tf.constant(nothing))

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


def set_released(variable: Any, value: tf.Tensor) -> None:
    """Sets a variable that may have been released."""
    with tf.init_scope(), tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(
            resource=_tf_compat.handle(variable), value=tf.identity(value)
        )


def _find(owners: Mapping[int, tuple[Any, Owner]], variable: Any) -> Owner | None:
    reference, owner = owners.get(id(variable), (None, None))
    return owner if reference is not None and reference() is variable else None


def _alive(owners: Mapping[int, tuple[Any, Owner]], one: Owner) -> list[Any]:
    variables = (reference() for reference, owner in owners.values() if owner == one)
    return [variable for variable in variables if variable is not None]


class VariableTable:
    """All variables that the steps of one replicator use."""

    def __init__(self, topology: Topology, *, detects_writes: bool = True) -> None:
        # Incremented when a variable changes kind, so that older programs are stale.
        self.version = 0
        # How many variables others have got to write since they have entries.
        self.num_exposed = 0
        # Whether programs look for writes outside of runs.
        self.detects_writes = detects_writes
        self._topology = topology
        # Which replica updates which variable, with a sharded update.
        self.ownership = Ownership(topology)
        self.resets = CopyRefresher(topology)  # Functions that reset copies.
        # Weak: an entry lives as long as its variable, or as long as a program.
        self._entries: weakref.WeakValueDictionary[int, Entry] = (
            weakref.WeakValueDictionary()
        )
        # Of steps in graphs of the user's, while none of their variables is checked.
        self._in_graphs: weakref.WeakValueDictionary[int, Entry] = (
            weakref.WeakValueDictionary()
        )
        self._switch: Any = None
        self._restored: dict[int, tuple[bytes, LocalState]] = {}

    def kind(self, variable: Any) -> kinds.Kind:
        """The kind of a variable: from its entry, or from its own flags."""
        if self._topology.num_replicas == 1:
            return kinds.Kind.MIRRORED
        entry = self._entries.get(id(variable))
        return entry.kind if entry else kinds.declared_kind(variable)

    def is_current(self, entry: Entry) -> bool:
        """Whether an entry is that of its variable, which has not been moved since."""
        variable, has_copies = entry.variable, entry.last_synced is not None
        is_known = self._entries.get(id(variable)) is entry
        return is_known and not (has_copies and self.ownership.is_stored(variable))

    def require(self, variable: Any, kind: kinds.Kind) -> Entry:
        """Returns the entry of a variable; creates its copies on first use."""
        entry = self._entries.get(id(variable))
        if entry is not None and entry.kind is kind and self.is_current(entry):
            return entry
        with _tf_handles.own():
            kinds.check_foreign(variable)
        if entry is not None:
            self.version += 1
        with tf.init_scope(), context.allowed():
            copies, last_synced = self._copies(variable, kind), None
            if any(copy is not variable for copy in copies):
                # Where it is compared.
                with tf.device(variable.device) if is_compiled(variable) else _ANYWHERE:
                    last_synced = context.own_variable(state(variable, kind))
            entry = Entry(
                variable=variable, kind=kind, copies=copies, last_synced=last_synced
            )
        self._entries[id(variable)] = entry
        if not hasattr(variable, _ENTRIES):
            setattr(variable, _ENTRIES, weakref.WeakKeyDictionary())
        getattr(variable, _ENTRIES)[self] = entry
        if last_synced is not None:
            _tf_handles.on_write(variable, _reset_copies)
        return entry

    def watch(self, variable: Any) -> None:
        """Lets a new variable be checked only once others can have its handle."""
        if self.detects_writes and self._topology.num_local_replicas > 1:
            _tf_handles.watch(variable, _expose)

    def is_checked(self, entry: Entry) -> bool:
        """Whether somebody may have written a variable without being noticed."""
        is_watched = _tf_handles.is_watched(entry.variable)
        is_exposed = not is_watched or hasattr(entry.variable, _IS_EXPOSED)
        return self.detects_writes and is_exposed

    def expose(self, entries: Iterable[Entry]) -> None:
        """Has variables checked from now on, as if others had taken their handles."""
        for entry in entries:
            if self.detects_writes and not self.is_checked(entry):
                _expose(entry.variable)

    def note_exposed(self, entry: Entry) -> None:
        """Records what a variable is before others write it."""
        if entry.last_synced is not None:
            with tf.init_scope(), _tf_handles.own():
                entry.last_synced.assign(state(entry.variable, entry.kind))
            self.num_exposed += 1
        if entry is self._in_graphs.get(id(entry)):
            together = [*self._in_graphs.values()]
            self._in_graphs.clear()
            self.expose(together)
            with tf.init_scope():
                self._switch.assign(True)

    def switch(self, entries: Sequence[Entry]) -> Any:
        """What says when it runs whether a graph checks variables, if any does."""
        # Nobody traces a graph of the user's again when somebody else can write one of
        # them. Where one can be written already, all are checked: None is returned.
        copied = [entry for entry in entries if entry.last_synced is not None]
        is_off = self._switch is None or bool(self._in_graphs)
        is_compiled = _tf_distribute.is_compiled_graph()
        if not is_off or is_compiled or any(map(self.is_checked, copied)):
            self.expose(copied)
            return None
        if not copied or not self.detects_writes:
            return None
        if self._switch is None:
            with tf.init_scope(), tf.device(self._topology.cpu), context.allowed():
                self._switch = context.own_variable(False)
        self._in_graphs.update({id(entry): entry for entry in copied})
        return self._switch

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def entries_of(self, variables: Sequence[Any]) -> list[Entry]:
        """The entries of those variables that have one, in their order."""
        entries = (self._entries.get(id(variable)) for variable in variables)
        return [entry for entry in entries if entry is not None]

    def local_state(self) -> list[LocalState]:
        """The values of the copies that differ between replicas."""
        local = [e for e in self._entries.values() if e.kind.is_per_replica]
        if self.detects_writes:
            # What raw ops and other graphs wrote would reach them with the next run.
            _tf_compat.wait_for_remote_ops()
            copied = (entry for entry in local if entry.last_synced is not None)
            checked = filter(was_written, filter(self.is_checked, copied))
            self.resets.apply(checked, is_certain=False)
            _tf_compat.wait_for_remote_ops()
        return [
            LocalState(
                variable=entry.variable,
                kind=entry.kind,
                values=tuple(copy.numpy() for copy in entry.copies),
            )
            for entry in local
        ]

    def restore(self, saved: Sequence[LocalState]) -> None:
        """Sets the copies that differ, now or when a step first needs them."""
        whole = [s for s in saved if len(s.values) == self._topology.num_replicas]
        self._restored = {
            id(state.variable): (state.variable.numpy().tobytes(), state)
            for state in whole
        }
        for entry in self._entries.values():
            if entry.kind is kinds.Kind.MIRRORED:
                continue
            values = self._initial_values(entry.variable, entry.kind)
            for copy, value in zip(entry.copies, values, strict=True):
                copy.assign(value)
            if entry.last_synced is not None:  # a partial one, with one replica here
                entry.last_synced.assign(state(entry.variable, entry.kind))

    def _initial_values(self, variable: Any, kind: kinds.Kind) -> list[Any]:
        topology = self._topology
        replica_ids = [topology.replica_id(r) for r in range(len(topology.devices))]
        value, restored = self._restored.pop(id(variable), (b"", None))
        # A value that the user has set since the restore takes precedence.
        if restored is not None and value == variable.numpy().tobytes():
            return [tf.constant(restored.values[r]) for r in replica_ids]
        is_sum = kinds.is_summed(variable)
        return [
            kinds.replica_value(
                variable.value(), kind, replica_id, topology.num_replicas, is_sum=is_sum
            )
            for replica_id in replica_ids
        ]

    def _copies(self, variable: Any, kind: kinds.Kind) -> tuple[Any, ...]:
        topology = self._topology
        is_mirrored, owned = kind is kinds.Kind.MIRRORED, self.ownership
        if (
            is_mirrored
            and owned.is_used
            and (owned.is_slot(variable) or owned.is_stored(variable))
        ):
            return (variable,) * topology.num_local_replicas
        initial = [] if is_mirrored else self._initial_values(variable, kind)
        copies: list[Any] = []
        for replica, devices in enumerate(topology.devices):
            replica_id = topology.replica_id(replica)
            if is_mirrored and topology.primaries[replica] != replica:
                copies.append(copies[topology.primaries[replica]])
                continue
            if replica == 0 and not kind.is_per_replica:
                copies.append(variable)
                continue
            logical_device = topology.logical_device_of(variable.device)
            with tf.device(devices[logical_device]):
                copies.append(
                    context.own_variable(
                        tf.identity(variable) if is_mirrored else initial[replica],
                        dtype=variable.dtype,
                        shape=variable.shape,
                        # TensorFlow makes a kernel per name.
                        name=f"replica_{replica_id}",
                    )
                )
        return tuple(copies)


def _expose(variable: Any) -> None:
    """Has a variable checked by all tables: others take its handle now."""
    if not hasattr(variable, _IS_EXPOSED):
        setattr(variable, _IS_EXPOSED, True)
        for table, entry in list(getattr(variable, _ENTRIES, {}).items()):
            table.note_exposed(entry)


def _reset_copies(variable: Any) -> None:
    """Gives what the user has written to all copies at once; the next run may fail."""
    # Functions of other processes do not wait for what was sent there before.
    _tf_compat.wait_for_remote_ops()
    for table, entry in list(getattr(variable, _ENTRIES).items()):
        if entry.last_synced is not None:
            table.resets.apply([entry], is_certain=True)


class UsedVariables:
    """The variables of one program, of the kinds for which it was built."""

    def __init__(self, entries: Mapping[str, Entry], table: VariableTable) -> None:
        self.entries = entries  # By handle placeholder.
        self._table = table
        self._version = table.version

    def is_stale(self) -> bool:
        """Whether another step has changed the kind of a variable used here."""
        if self._version == self._table.version:
            return False
        self._version = self._table.version
        return any(
            self._table.kind(e.variable) is not e.kind or not self._table.is_current(e)
            for e in self.entries.values()
        )
