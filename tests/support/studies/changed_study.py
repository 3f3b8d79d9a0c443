"""A study whose trials have other observations than were written for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from results.study.cases import Case, Entry, Study

    WithEntries = TypeVar("WithEntries", Case, Study)


def with_results(
    of: WithEntries, change: Callable[[Entry], Mapping[str, Any] | None]
) -> WithEntries:
    """A study or case with other fields of the results that a function gives."""

    def changed(entry: Entry) -> Entry:
        fields = change(entry)
        if fields is None or entry.trial is None:
            return entry
        result = entry.result.model_copy(update=dict(fields))
        trial = dataclasses.replace(entry.trial, result=result)
        return dataclasses.replace(entry, trial=trial)

    return dataclasses.replace(of, entries=tuple(map(changed, of.entries)))


def with_turns(of: WithEntries, change: Callable[[Entry], dict[str, Any]]) -> Any:
    """Returns the same with other fields of every turn; they may be functions of it."""

    def turns(entry: Entry) -> dict[str, Any] | None:
        if not entry.is_ok:
            return None
        fields = change(entry)
        return {
            "turns": tuple(
                turn.model_copy(
                    update={k: v(turn) if callable(v) else v for k, v in fields.items()}
                )
                for turn in entry.result.turns
            )
        }

    return with_results(of, turns)
