"""Entries of a catalogue by name; imports little: each process of a gang does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")


def look_up(table: Mapping[str, _T], name: str, *, what: str) -> _T:
    """Returns an entry of a catalogue.

    Raises:
      PlanError: Unknown name; the message lists the known ones.
    """
    try:
        return table[name]
    except KeyError:
        import difflib  # only where there is an error to explain

        close = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PlanError(
            f"unknown {what} {name!r}; known are {', '.join(table)}{hint}"
        ) from None
