"""Replay that samples every transition with the same probability."""

from __future__ import annotations

import numpy as np

from workloads.d4pg.replay.replay import Replay, StarvedReplayError

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
