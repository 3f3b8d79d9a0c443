"""The variables that a program uses, and whether it still fits what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from replicator.variables.kinds import Kind
    from replicator.variables.table import Entry


class KindTable(Protocol):
    """The kinds of all variables of one replicator."""

    @property
    def version(self) -> int:
        """Grows when a variable changes kind."""

    def kind(self, variable: Any) -> Kind:
        """What is known of a variable."""

    def is_current(self, entry: Entry) -> bool:
        """Whether a variable still has the copies of an entry."""


class UsedVariables:
    """The variables of one program, of the kinds for which it was built.

    Attributes:
      entries: By handle placeholder.
    """

    def __init__(self, entries: Mapping[str, Entry], table: KindTable) -> None:
        self.entries = entries
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
