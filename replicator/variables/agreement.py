"""Agreement: whether the copies of mirrored variables hold the same bits.

By construction they do; whoever asks wants to know whether something that the library
does not see has written one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.errors import ReplicasOutOfSyncError
from replicator.variables.kinds import Kind
from replicator.variables.outside_writes import was_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.variables.table import VariableTable

_MOST_NAMED = 5


def check(table: VariableTable) -> None:
    """Compares the copies of all variables of a table, bit by bit."""
    differing = []
    for entry in table.entries():
        if entry.kind is not Kind.MIRRORED or table.ownership.is_slot(entry.variable):
            continue  # a variable that exists once cannot differ
        first = entry.copies[0].numpy()
        if any(
            copy.numpy().tobytes() != first.tobytes()
            for copy in entry.copies[1:]
            if copy is not entry.copies[0]
        ):
            differing.append(entry.variable.name)
    remedy = "assign variables outside run(): the next run() then resets all copies"
    if not table.detects_writes:
        remedy = (
            "with external_writes='never', call refresh_variables() after writing "
            "variables outside run()"
        )
    report(differing, f"; {remedy}")


def report(differing: Sequence[str], remedy: str = "") -> None:
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
        if entry.seen is not None and was_written(entry)
    ]
    if written:
        raise ReplicasOutOfSyncError(
            f"{len(written)} variables were written outside run() although "
            f"external_writes='never': {', '.join(written[:_MOST_NAMED])}; call "
            "refresh_variables() after writing, or use external_writes='detect'"
        )
