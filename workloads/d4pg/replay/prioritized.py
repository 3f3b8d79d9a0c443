"""How a replay samples: uniformly, or by priorities in a tree of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.d4pg.replay.replay import Replay, ReplaySettings, StarvedReplayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.d4pg.replay.streams import StepStreams


class SumTree:
    """Non-negative weights of leaves, and the sums above them.

    Sums are recomputed from their two parts, never incremented, so that they do not
    drift.
    """

    def __init__(self, num_leaves: int) -> None:
        self._num_leaves = num_leaves
        self._depth = max(num_leaves - 1, 1).bit_length()
        self._first = 1 << self._depth
        # Node k has the parts 2k and 2k + 1; 1 is the root.
        self._sums = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums[1])

    def weights(self, leaves: np.ndarray) -> np.ndarray:
        """Returns weights of leaves, float64 [n]."""
        return self._sums[self._first + leaves]

    def set(self, leaves: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets weights of leaves, int [n]; for duplicates, the last one is used."""
        nodes = self._first + np.asarray(leaves)
        self._sums[nodes] = weights
        for _ in range(self._depth):
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Returns the leaves that cover positions in [0, total), int64 [n].

        Leaf k covers the interval from the sum of the weights before it to the sum that
        includes its own.
        """
        left_over = np.array(positions, np.float64)
        nodes = np.ones(len(left_over), np.int64)
        for _ in range(self._depth):
            nodes *= 2
            left = self._sums[nodes]
            # A part of zero weight is never entered, not even through rounding.
            goes_right = (left_over >= left) & (self._sums[nodes + 1] > 0)
            left_over -= np.where(goes_right, left, 0.0)
            nodes += goes_right
        return np.minimum(nodes - self._first, self._num_leaves - 1)


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


_MOST_ROUNDS = 1000


class UniformReplay(Replay):
    """All existing transitions are equally likely."""

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = self._reader.bounds()
        ends = (high - low).cumsum()
        total = int(ends[-1])
        found: list[tuple[np.ndarray, np.ndarray]] = []
        missing = count
        # Final observations start no transition: such samples are drawn again, which
        # keeps the others equally likely.
        for _ in range(_MOST_ROUNDS):
            places = self._rng.integers(total, size=missing)
            streams = np.searchsorted(ends, places, side="right")
            numbers = high[streams] - (ends[streams] - places)
            is_valid = self._reader.read(streams, numbers).is_valid
            found.append((streams[is_valid], numbers[is_valid]))
            missing -= int(is_valid.sum())
            if not missing:
                break
        else:
            raise StarvedReplayError(
                f"none of {total} environment steps starts a transition: every episode "
                f"ends where it begins; {self._streams.describe_actors()}"
            )
        streams, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
        return streams, numbers, np.full(count, 1 / total)


def make_replay(
    streams: StepStreams,
    settings: ReplaySettings,
    on_wait: Callable[[], None] | None = None,
) -> Replay:
    """Returns the replay for the settings, over ``streams``."""
    kind = PrioritizedReplay if settings.is_prioritized else UniformReplay
    return kind(streams, settings, on_wait)
