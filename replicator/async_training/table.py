"""Table: which variables workers share, and the copies of all others.

Variables that a step adds to (``assign_add``, ``assign_sub``, scatter) are shared, and
so are those that ``wrap_optimizer`` updates. A variable that a step overwrites
(``assign``: batch-norm statistics, Keras metrics, states of random generators) has a
copy per replica of every worker, on the server of the user's own variable, because
workers that overwrite each other's values would lose some. Between steps the user's own
variable reads as their mean; see ``variables.table``. The graph of each run of other
backends keeps both coherent (``variables.coherence``). Here dispatches are concurrent,
so it is done before the first and after the last of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.step import creation
from replicator.step.tracing import traced_once
from replicator.variables.coherence import Coherence
from replicator.variables.kinds import Kind
from replicator.variables.table import Entry, VariableTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.async_training.commit_state import CommitState
    from replicator.async_training.placement import Placement
    from replicator.placement.topology import Topology


class ServerTable(VariableTable):
    """The variables of all workers.

    Attributes:
      num_replicas: Replicas of the whole cluster.
      num_workers: Workers of the cluster.
      is_published: Whether the user's variables hold what the copies hold.
    """

    def __init__(
        self, topology: Topology, num_workers: int, placement: Placement
    ) -> None:
        super().__init__(topology)
        self.num_replicas = topology.num_replicas
        self.num_workers = num_workers
        self.placement = placement
        self.is_published = True
        self._coherent: list[Entry] = []
        self._functions: dict[str, Any] = {}

    def refresh(self) -> None:
        """Resets copies of variables that were changed outside, while nothing runs."""
        self.placement.counters.refresh()
        self._run("refresh")

    def publish(self) -> None:
        """Gives the user's variables what the copies of all replicas hold."""
        if not self.is_published:
            self._run("publish")
        self.is_published = True

    def _run(self, name: str) -> None:
        entries = [entry for entry in self.entries() if entry.seen is not None]
        if not entries:
            return
        if list(map(id, entries)) != list(map(id, self._coherent)):
            coherence, self._coherent = (
                Coherence(entries, self._topology, self.resets),
                entries,
            )
            self._functions = {
                "refresh": traced_once(coherence.refresh),
                "publish": traced_once(coherence.publish),
            }
        self._functions[name]()
        _tf_compat.wait_for_remote_ops()

    def view(self, worker: int, commit_states: Sequence[CommitState]) -> WorkerTable:
        """The table as the program of one worker sees it."""
        return WorkerTable(self, worker, commit_states)

    def _copies(self, variable: Any, kind: Kind) -> tuple[Any, ...]:
        if kind is Kind.MIRRORED:
            return (variable,) * self.num_replicas
        copies = []
        for value in self._initial_values(variable, kind):
            with creation.allowed(), tf.device(variable.device):
                copies.append(
                    tf.Variable(
                        value,
                        trainable=False,
                        dtype=variable.dtype,
                        shape=variable.shape,
                    )
                )
        return tuple(copies)


class WorkerTable:
    """One worker's part of a table; what a program asks of one.

    Attributes:
      version: That of the whole table.
    """

    def __init__(
        self, table: ServerTable, worker: int, commit_states: Sequence[CommitState]
    ) -> None:
        self._table = table
        self._worker = worker
        self._commit_states = commit_states
        self._share = table.num_replicas // table.num_workers

    @property
    def version(self) -> int:
        """Grows when a variable changes kind."""
        return self._table.version

    def kind(self, variable: Any) -> Kind:
        """What is known of a variable; see ``VariableTable.kind``."""
        return self._table.kind(variable)

    def is_current(self, entry: Entry) -> bool:
        """True: what is on a server stays there."""
        del entry
        return True

    def require(self, variable: Any, kind: Kind) -> Entry:
        """The entry of a variable with the copies of this worker's replicas."""
        for commit_state in self._commit_states:
            mine = commit_state.copies_for(variable, self._worker)
            if mine is not None:
                copies = (mine,) * self._share
                return Entry(variable=variable, kind=kind, copies=copies, seen=None)
        entry = self._table.require(variable, kind)
        start = self._worker * self._share
        return dataclasses.replace(
            entry, copies=entry.copies[start : start + self._share]
        )
