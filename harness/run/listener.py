"""The interface for the progress of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from results.records.models import PlannedTrial, StatusRecord, TrialResult


class Progress(Protocol):
    """Receives the events of a sweep."""

    def begin(self, num_trials: int, num_finished: int) -> None:
        """The sweep starts; ``num_finished`` of ``num_trials`` are already done."""

    def trial_started(self, trial: PlannedTrial, eta_sec: float | None) -> None:
        """A trial starts; ``eta_sec`` is the time to the end of the sweep.

        It is negative where the sweep takes longer than was estimated.
        """

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        """A relay does something else now; ``eta_sec`` as in ``trial_started``.

        With ``is_most`` it is the longest time: the sweep may end earlier.
        """

    def phase(self, text: str, eta_sec: float | None) -> None:
        """A trial that runs alone does something else; ``eta_sec`` as above."""

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        """A trial is recorded."""

    def note(self, text: str) -> None:
        """Something the user should know, one line."""

    def end(self) -> None:
        """The sweep has ended or was interrupted; the terminal is restored."""
