"""Entries of a catalogue by name; imports little: each process of a gang does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.plugins import Complaint

_T = TypeVar("_T")


def look_up(table: Mapping[str, _T], name: str, *, what: str) -> _T:
    """Returns an entry of a catalogue."""
    try:
        return table[name]
    except KeyError:
        import difflib  # only where there is an error to explain

        close = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PlanError(
            f"unknown {what} {name!r}; known are {', '.join(table)}{hint}"
        ) from None


def find(kind: str, table: dict[str, _T], name: str, complain: Complaint) -> _T:
    """Returns an entry of a catalogue to which plugins add."""
    if name not in table:
        from results import plugins  # only where a name is not built in

        if plugins.find(kind, table, name, complain, Path.cwd()) is None:
            known = dict.fromkeys(plugins.names(kind, table))
            look_up(known, name, what=plugins.KINDS[kind])
        name = plugins.canonical(kind, name)
    return table[name]
