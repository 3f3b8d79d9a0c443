"""Fixtures of running: what must be the same however often a study was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from results.figures.frame import steps_frame, trials_frame
from results.figures.summary import summary

if TYPE_CHECKING:
    from results.store.study_store import Store


def _tables(store: Store) -> Any:
    trials = trials_frame(store)
    clocks = [
        name
        for name in trials.columns
        if name.startswith(("started", "ended", "duration"))
    ]
    return (
        trials.drop(columns=clocks).to_csv(),
        steps_frame(store).to_csv(),
        summary(store),
    )


@pytest.fixture
def tables() -> Any:
    """Returns what a report is made of, but not how long the harness took."""
    return _tables
