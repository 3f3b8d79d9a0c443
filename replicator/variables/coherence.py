"""Coherence: the user's own variables and the replicas' copies agree between steps.

Users read and write ordinary variables: they restore checkpoints, set weights, print
statistics. Before a run, ``refresh`` detects changes of variables that others can write
and resets the replicas' copies from them; after it, ``publish`` updates
the user's variables from the replicas' results. Both are part of the graph of the run,
so there is no call that a user could forget. After a run that failed, ``repair`` does
what is left of both. Variables that replicas share need none of them.

The user's own variable is authoritative, although replicas compute with
the copies: that is what makes ``tf.Variable``, Keras and checkpoints work unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator._tf import handles as _tf_handles
from replicator._tf.distribute import Branch
from replicator.core import devices
from replicator.core.step import traced_once
from replicator.errors import ReplicasOutOfSyncError
from replicator.variables.kinds import Kind
from replicator.variables.values import OutsideValues, to_number
from replicator.variables.writes import WriteCheck, state, was_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from replicator.collectives.kind import Transfer
    from replicator.core.topology import Group, Topology
    from replicator.variables.table import Entry, VariableTable
    from replicator.variables.writes import CopyRefresher

_MOST_NAMED = 5


class Coherence:
    """Keeps the variables of one program coherent around its runs."""

    def __init__(
        self,
        entries: Sequence[Entry],
        topology: Topology,
        resets: CopyRefresher,
        group: Group | None = None,
        *,
        is_checked: Callable[[Entry], bool] = lambda _entry: True,
    ) -> None:
        # Variables with copies of their own.
        self.entries = tuple(
            entry for entry in entries if entry.last_synced is not None
        )
        self._topology = topology
        self._is_checked = is_checked
        self._resets = resets
        self._branches: list[Branch] = []
        self._published = [entry for entry in self.entries if _is_published(entry)]
        self._values = OutsideValues(self._published, topology, group)

    @property
    def communicates(self) -> bool:
        """Whether ``publish`` asks other workers."""
        return self._values.are_sent

    @property
    def transfers(self) -> list[Transfer]:
        """What ``publish`` sends between memories of this program."""
        return self._values.transfers

    def refresh(self, switch: Any = None) -> None:
        """Emits the check for outside writes, and the reset of changed variables."""
        is_any = switch is not None
        checked = [e for e in self.entries if is_any or self._is_checked(e)]

        def check() -> None:
            # Of all that are checked: each is compared again before it is reset.
            self._branch(
                WriteCheck(checked).is_changed(),
                lambda: self._resets.apply(checked, is_certain=False),
                devices.cpu_of(self._topology.replica_devices[0]),
            )

        if checked:
            with _tf_handles.own():
                self._only_if(switch, check)

    def reset(self) -> None:
        """Resets copies that differ from what the user has written, unchecked.

        Partial variables stay: nobody but a restored checkpoint writes those, and it
        sets their copies (``VariableTable.restore``).
        """
        written = (entry for entry in self.entries if entry.kind is not Kind.PARTIAL)
        self._resets.apply(written, is_certain=False)

    def publish(self, switch: Any = None) -> None:
        """Emits the update of the user's variables and records their state."""
        published = self._published
        with _tf_handles.own():
            values = self._values.read()
            for entry, value in zip(published, values, strict=True):
                entry.variable.assign(value, read_value=False)
            known = {id(e): value for e, value in zip(published, values, strict=True)}
            # Last: what the run itself wrote is no write of the user's.
            recorded = [
                e for e in self.entries if id(e) in known or self._is_checked(e)
            ]
            WriteCheck(recorded).record([known.get(id(entry)) for entry in recorded])
            others = [entry for entry in self.entries if id(entry) not in known]
            if switch is not None and others:
                nothing = [None] * len(others)
                self._only_if(switch, lambda: WriteCheck(others).record(nothing))

    def repair(self) -> None:
        """Emits the ops that make variables coherent after a run that failed.

        Some replicas may have written and others not. Copies that are to be equal
        become that of replica 0; what each replica has of its own stays its own, and
        the user's variable reads as if the run had ended there.
        """
        with _tf_handles.own():
            self._repair()

    def _repair(self) -> None:
        # It is unknown whether that run came to its refresh; if it did, this is the
        # identity. Of partial variables, replica 0's is the user's own.
        own = (e for e in self.entries if e.kind.is_per_replica and self._is_checked(e))
        self._resets.apply(own, is_certain=False)
        for entry, value in zip(self._published, self._values.read(), strict=True):
            entry.variable.assign(value, read_value=False)
        for entry in self.entries:
            if entry.kind is not Kind.MIRRORED:
                entry.last_synced.assign(
                    state(entry.variable, entry.kind), read_value=False
                )
        alike = (e for e in self.entries if e.kind in (Kind.MIRRORED, Kind.RANDOM))
        self._resets.apply(alike, is_certain=True)

    def _only_if(self, switch: Any, emit: Callable[[], None]) -> None:
        """Emits ops, which run only where a switch is on when they are to."""
        if switch is None:
            emit()
        else:
            self._branch(switch.read_value(), emit, switch.device)

    def _branch(
        self, condition: tf.Tensor, emit: Callable[[], None], device: str
    ) -> None:
        """Emits a call of ops, which run only where a condition holds."""
        # Not inlined: an untaken branch costs one node a step instead of thousands.
        traced = traced_once(
            emit, experimental_attributes={"_noinline": True}
        ).get_concrete_function()
        if _tf_distribute.is_compiled_graph():  # XLA has no other branches
            tf.cond(condition, traced, lambda: None)
            return
        captured = traced.captured_inputs
        branch = Branch(traced, [of.dtype for of in captured], device)
        branch.call(condition, captured)
        self._branches.append(branch)


def _is_published(entry: Entry) -> bool:
    """Whether no replica uses the user's own variable."""
    return not any(copy is entry.variable for copy in entry.copies)


def consolidate(
    entries: Iterable[Entry],
    topology: Topology,
    add_up: Callable[[list[tf.Tensor]], list[tf.Tensor]] = list,
) -> None:
    """Makes all copies of each partial variable their mean, before it is saved.

    They are not averaged between steps, because avoiding that communication is their
    purpose. This changes no result, and the user's own variable then holds the whole
    state, which can be restored with any number of replicas.
    """
    partial = [entry for entry in entries if entry.kind is Kind.PARTIAL]
    sums = []
    for entry in partial:
        with tf.device(entry.variable.device):
            copies = [to_number(tf.identity(copy)) for copy in entry.copies]
            sums.append(tf.add_n(copies))
    if not partial:
        return
    for entry, total in zip(partial, add_up(sums), strict=True):
        with tf.device(entry.variable.device):
            mean = total / tf.cast(topology.num_replicas, total.dtype)
            mean = tf.cast(mean, entry.variable.dtype)
        for copy in entry.copies:
            copy.assign(mean)
        if (
            entry.last_synced is not None
        ):  # not the only replica of one of several workers
            entry.last_synced.assign(state(entry.variable, entry.kind))


def check_in_sync(table: VariableTable) -> None:
    """Compares the copies of all mirrored variables, bit by bit.

    They are equal unless something that the library does not see has written one.
    """
    differing = [
        entry.variable.name
        for entry in table.entries()
        if entry.kind is Kind.MIRRORED
        and not table.ownership.is_slot(entry.variable)  # it exists once
        and was_written(entry)
    ]
    remedy = "assign variables outside run(): the next run() then resets all copies"
    if not table.detects_writes:
        remedy = (
            "with external_writes='never', call refresh_variables() after writing "
            "variables outside run()"
        )
    report_out_of_sync(differing, f"; {remedy}")


def report_out_of_sync(differing: Sequence[str], remedy: str = "") -> None:
    """Raises an error if any variables differ."""
    if differing:
        raise ReplicasOutOfSyncError(
            f"{len(differing)} mirrored variables differ between replicas: "
            f"{', '.join(differing[:_MOST_NAMED])}{remedy}"
        )


def check_promise(table: VariableTable, variables: Sequence[Any]) -> None:
    """Rejects variables that were written although nobody was to write them."""
    if table.detects_writes:
        return
    written = [
        entry.variable.name
        for entry in table.entries_of(variables)
        if entry.last_synced is not None and was_written(entry)
    ]
    if written:
        raise ReplicasOutOfSyncError(
            f"{len(written)} variables were written outside run() although "
            f"external_writes='never': {', '.join(written[:_MOST_NAMED])}; call "
            "refresh_variables() after writing, or use external_writes='detect'"
        )
