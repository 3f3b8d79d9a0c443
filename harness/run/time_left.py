"""How long a relay still takes: what was measured of it, as soon as there is any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from results.records.measuring import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results.records.measuring import Measuring
    from results.store.stored_trial import Trial


def relay_sec(trials: Iterable[Trial]) -> float:
    """Returns the time that the finished trials of a relay took, all together."""
    return sum(
        trial.status.duration_sec
        for trial in trials
        if trial.spec.order is Order.RELAY and trial.status is not None
    )


class RelayTimeLeft:
    """The time to the end of a relay, while one of its generations runs.

    Attributes:
      is_most: Whether it is the longest time: a gate, or a sweep with a target, goes on
        only until it can say something.
    """

    def __init__(
        self,
        measuring: Measuring,
        index: int,
        *,
        num_later: int,
        used_sec: float,
        whole_sec: float,
        is_measured: bool,
    ) -> None:
        """Creates it."""
        looks = () if measuring.gate is None else measuring.gate.looks
        self.is_most = bool(looks) or measuring.target is not None
        self._limit_sec: float | None = None
        if self.is_most and measuring.minutes is not None:
            self._limit_sec = measuring.minutes * 60 - used_sec
        if looks:
            num_later = max(num_later, looks[-1] - index - 1)
        elif self.is_most:
            num_later = -1  # until the limit
        self._num_later = num_later
        self._whole_sec = whole_sec
        self._is_measured = is_measured

    def update(self, passed_sec: float, left_sec: float | None) -> float:
        """Returns the time to the end."""
        if left_sec is not None and not self._is_measured:
            self._whole_sec = passed_sec + left_sec
        found = max(self._whole_sec - passed_sec, 0.0)
        found += max(self._num_later, 0) * self._whole_sec
        if self._limit_sec is None:
            return found
        limit_sec = max(self._limit_sec - passed_sec, 0.0)
        return limit_sec if self._num_later < 0 else min(found, limit_sec)
