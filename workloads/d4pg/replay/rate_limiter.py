"""Limits the ratio of sampled to inserted records, by blocking either side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.d4pg.replay.streams import StepStreams

_BUFFER_SHARE = 0.1


class RateLimiter:
    """Keeps the number of transitions sampled per record inserted near a ratio.

    As Reverb's ``SampleToInsertRatio``: with c = inserted * ratio - sampled, sampling
    waits while c is less than min_size * ratio - buffer, and actors wait while it is
    more than min_size * ratio + buffer.
    """

    def __init__(
        self,
        streams: StepStreams,
        *,
        min_size_to_sample: int,
        samples_per_insert: float,
        error_buffer: float,
    ) -> None:
        self._streams = streams
        self._min_size = min_size_to_sample
        self._ratio = samples_per_insert
        self._is_chosen = not error_buffer
        self._buffer = error_buffer or (
            _BUFFER_SHARE * min_size_to_sample * samples_per_insert
        )
        self.num_sampled = 0
        self._tell_actors()

    def can_sample(self, num_transitions: int) -> bool:
        """Whether this many more transitions may be sampled now."""
        if self._is_chosen and self._buffer < num_transitions:
            self._buffer = float(num_transitions)
            self._tell_actors()
        if self._ratio and 2 * self._buffer < num_transitions:
            raise ValueError(
                f"option error_buffer={self._buffer:g} must be at least half of the "
                f"{num_transitions} transitions that are sampled at once, or learner "
                "and actors wait for each other: use 0 for the default"
            )
        inserted = self._streams.num_inserted()
        if inserted < self._min_size:
            return False
        if not self._ratio:
            return True
        balance = inserted * self._ratio - self.num_sampled - num_transitions
        return balance >= self._min_size * self._ratio - self._buffer

    def add_sampled(self, num_transitions: int) -> None:
        """Counts transitions as sampled, and lets actors write more."""
        self.num_sampled += num_transitions
        self._tell_actors()

    def _tell_actors(self) -> None:
        if self._ratio:
            owed = (self.num_sampled + self._buffer) / self._ratio
            self._streams.set_limit(math.ceil(self._min_size + owed))
        else:
            self._streams.set_limit(math.inf)
