"""Which trials of a store have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.store.study_store import Store


def ended_ids(store: Store) -> frozenset[str]:
    """Returns the ids of the readable trials that have a status, whichever."""
    return frozenset(
        trial.trial_id for trial in store.read().trials if trial.status is not None
    )
