"""Replay that samples transitions by their TD error (Schaul et al. 2015)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.d4pg.replay.replay import Replay, ReplaySettings
from workloads.d4pg.replay.sum_tree import SumTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.d4pg.replay.streams import StepStreams

# So that a transition with zero error can still be sampled.
_LEAST_PRIORITY = 1e-6


class PrioritizedReplay(Replay):
    """A transition's probability is proportional to |error| ** alpha.

    New transitions have the largest priority so far, so that each is likely to be
    sampled. The tree has one leaf per record of the rings, and is updated with the new
    records when something is sampled.
    """

    def __init__(
        self,
        streams: StepStreams,
        settings: ReplaySettings,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(streams, settings, on_wait)
        spec = streams.spec
        self._size = spec.steps_per_stream
        self._tree = SumTree(spec.num_streams * self._size)
        self._largest = 1.0
        # Records in [low, high) of each stream have their leaves.
        self._low = np.zeros(spec.num_streams, np.int64)
        self._high = np.zeros(spec.num_streams, np.int64)
        # Number of the record of each leaf: rings wrap around.
        self._owner = np.full(spec.num_streams * self._size, -1, np.int64)

    def update_priorities(self, index: np.ndarray, td_errors: np.ndarray) -> None:
        """Sets priorities by the size of errors; skips records overwritten since."""
        index, td_errors = np.asarray(index), np.asarray(td_errors, np.float64)
        if index.shape != td_errors.shape or index.ndim != 1:
            raise ValueError(
                f"index has the shape {index.shape} and td_errors {td_errors.shape}: "
                "both must be vectors of the same length"
            )
        if not np.isfinite(td_errors).all():
            raise ValueError(
                f"{int((~np.isfinite(td_errors)).sum())} of {len(td_errors)} td_errors "
                "are not finite: a priority must be a number"
            )
        priorities = np.abs(td_errors) + _LEAST_PRIORITY
        numbers, streams = np.divmod(index, self._streams.spec.num_streams)
        leaves = streams * self._size + numbers % self._size
        with self._lock:
            is_there = self._owner[leaves] == numbers
            if is_there.any():
                self._largest = max(self._largest, float(priorities.max()))
                self._tree.set(
                    leaves[is_there],
                    priorities[is_there] ** self._settings.priority_exponent,
                )

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._follow()
        total = self._tree.total
        if total <= 0:
            raise self._starved(0.0)
        leaves = self._tree.find(self._rng.uniform(0, total, count))
        probability = self._tree.weights(leaves) / total
        return leaves // self._size, self._owner[leaves], probability

    def _follow(self) -> None:
        """Sets the leaves of new transitions, and clears those of overwritten ones."""
        low, high = self._reader.bounds()
        gone, new = [], []
        for stream in np.flatnonzero((low != self._low) | (high != self._high)):
            old_low, old_high = self._low[stream], self._high[stream]
            # Nothing before the new low: its leaf may already belong to a later record.
            gone.append(self._records(stream, old_low, min(low[stream], old_high)))
            new.append(self._records(stream, max(old_high, low[stream]), high[stream]))
        if not new:
            return
        self._low, self._high = low, high
        streams, numbers = (np.concatenate(part) for part in zip(*gone, strict=True))
        leaves = streams * self._size + numbers % self._size
        self._owner[leaves] = -1
        if len(leaves):
            self._tree.set(leaves, 0.0)
        streams, numbers = (np.concatenate(part) for part in zip(*new, strict=True))
        is_valid = self._reader.read(streams, numbers).is_valid
        streams, numbers = streams[is_valid], numbers[is_valid]
        leaves = streams * self._size + numbers % self._size
        self._owner[leaves] = numbers
        if len(leaves):
            self._tree.set(leaves, self._largest**self._settings.priority_exponent)

    @staticmethod
    def _records(stream: Any, low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.arange(low, max(low, high), dtype=np.int64)
        return np.full(len(numbers), stream, np.int64), numbers
