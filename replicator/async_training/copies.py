"""Copies: the user's variables agree with the copies of replicas, between dispatches.

It does the same as ``variables.coherence`` in the graph of each run, but before the
first and after the last of concurrent dispatches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator.step.traced_once import traced_once
from replicator.variables.coherence import Coherence

if TYPE_CHECKING:
    from replicator.async_training.table import ServerTable
    from replicator.placement.topology import Topology


class Copies:
    """The variables of a table that have a copy per replica.

    Attributes:
      is_published: Whether the user's variables hold what the copies hold.
    """

    def __init__(self, table: ServerTable, topology: Topology) -> None:
        self.is_published = True
        self._table = table
        self._topology = topology
        self._made: tuple[Any, ...] = ([], None, None)

    def refresh(self) -> None:
        """Resets copies of variables that were changed outside, while nothing runs."""
        self._call(1)

    def publish(self) -> None:
        """Gives the user's variables what the copies of all replicas hold."""
        if not self.is_published:
            self._call(2)
        self.is_published = True

    def _call(self, which: int) -> None:
        entries = [entry for entry in self._table.entries() if entry.seen is not None]
        if not entries:
            return
        if list(map(id, entries)) != list(map(id, self._made[0])):
            coherence = Coherence(entries, self._topology)
            self._made = (
                entries,
                traced_once(coherence.refresh),
                traced_once(coherence.publish),
            )
        self._made[which]()
        _tf_compat.wait_for_remote_ops()
