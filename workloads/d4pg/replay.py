"""Replay: n-step transitions and frame stacks, built from records when sampled.

The convention is Acme's (``acme/adders/reverb/transition.py``): with rewards r,
discounts d of the environment and g of the agent, a transition over m steps has

    R = r_0 + g d_0 r_1 + ... + g^(m-1) d_0 ... d_(m-2) r_(m-1)
    D = g^(m-1) d_0 ... d_(m-1)

so that the learner multiplies by g once more. m is n, and less only at the end
of an episode. Unlike Acme, there are no shorter transitions at its start.

An episode ends at its final observation. If an actor was replaced, or a value was not
finite, the records of an episode end without one. The last of them is then used as the
final observation, because the next state is unknown.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import capacity
from .streams import FIELDS

if TYPE_CHECKING:
    from .streams import StepStreams
    from .study import D4PGConfig

_WAIT_SEC = 0.001
_BUFFER_SHARE = 0.1
_MOST_ATTEMPTS = 100
_MOST_ROUNDS = 1000
# So that a transition with zero error can still be sampled.
_LEAST_PRIORITY = 1e-6


class StarvedReplayError(RuntimeError):
    """Nothing could be sampled for too long; the message describes each actor."""


@dataclasses.dataclass(frozen=True, slots=True)
class Transitions:
    # Whether the transition exists: all its records exist, and the first one is not a
    # final observation; bool [n]. The other fields are undefined if not.
    is_valid: np.ndarray
    # Where the fields have its first record, and its end, m later; int64 [n].
    begin: np.ndarray
    end: np.ndarray
    reward: np.ndarray  # R, float32 [n].
    discount: np.ndarray  # D, float32 [n].


class Replay:
    """Transitions of the last environment steps of all streams, drawn uniformly."""

    wait_sec: float = 0.0  # Time that ``sample`` has waited for actors.

    def __init__(
        self,
        streams: StepStreams,
        config: D4PGConfig,
        *,
        min_size: int,
        seed: int = 0,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates a replay; ``on_wait`` is called while it waits."""
        self._streams = streams
        self._config, self._min_size = config, min_size
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._is_running = threading.Event()
        self._is_running.set()
        self._rng = np.random.default_rng(seed)
        self._offsets = np.arange(config.num_return_steps + 1)
        self._powers = config.discount ** np.arange(config.num_return_steps)
        self._fields = {name: streams.field(name) for name in FIELDS}
        self.num_sampled = 0
        self._buffer = _BUFFER_SHARE * min_size * config.samples_per_insert
        self.add_sampled(0)

    def __len__(self) -> int:
        """Returns how many records, final observations included, have n after them."""
        low, high = self.bounds()
        return int((high - low).sum())

    @property
    def num_inserted(self) -> int:
        return self._streams.num_inserted()

    # The number of transitions sampled per record inserted stays near a ratio, as by
    # Reverb's ``SampleToInsertRatio``: with c = inserted * ratio - sampled, sampling
    # waits while c is less than min_size * ratio - buffer, and actors wait while it is
    # more than min_size * ratio + buffer.

    def can_sample(self, num_transitions: int) -> bool:
        ratio = self._config.samples_per_insert
        if self._buffer < num_transitions:
            # Or learner and actors would wait for each other.
            self._buffer = float(num_transitions)
            self.add_sampled(0)
        inserted = self.num_inserted
        if inserted < self._min_size:
            return False
        if not ratio:
            return True
        balance = inserted * ratio - self.num_sampled - num_transitions
        return balance >= self._min_size * ratio - self._buffer

    def add_sampled(self, num_transitions: int) -> None:
        """Counts transitions as sampled, and lets actors write more."""
        self.num_sampled += num_transitions
        limit = math.inf
        if self._config.samples_per_insert:
            owed = (self.num_sampled + self._buffer) / self._config.samples_per_insert
            limit = math.ceil(self._min_size + owed)
        self._streams.set_limit(limit)

    def pause(self) -> None:
        self._is_running.clear()

    def resume(self) -> None:
        self._is_running.set()

    def sample(
        self, num_transitions: int, *, timeout_sec: float = 60.0
    ) -> dict[str, np.ndarray]:
        """Samples transitions with replacement; waits until the rate allows it."""
        self._wait(num_transitions, timeout_sec)
        size = self._streams.share.steps_per_stream
        num_before = self._config.num_stacked_frames - 1
        for _ in range(_MOST_ATTEMPTS):
            with self._lock:
                index, probability = self._draw(num_transitions)
            transitions = self.read(index)
            batch = {
                "observation": self.observations(transitions.begin),
                "action": self._streams.field("action")[transitions.begin],
                "reward": transitions.reward,
                "discount": transitions.discount,
                "next_observation": self.observations(transitions.end),
                "index": index,
                "probability": probability,
            }
            _, following = self._streams.locate(index, -num_before)
            if (following < size).all() and transitions.is_valid.all():
                self.add_sampled(num_transitions)
                return batch
        raise StarvedReplayError(
            f"every one of {_MOST_ATTEMPTS} samples was overwritten while it was read, "
            f"because {size} records per stream are too few for the rate at which "
            "actors write: use a larger replay"
        )

    def update_priorities(self, index: np.ndarray, td_errors: np.ndarray) -> None:
        """Sets priorities by the size of errors; does nothing for uniform replay."""

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns each stream's range of records that can start a transition."""
        written = self._streams.num_written.copy()
        size = self._streams.share.steps_per_stream
        low = written - size + capacity.margin(size)
        # The frames before the first one must exist as well.
        low = np.where(low > 0, low + self._config.num_stacked_frames - 1, 0)
        return low, np.maximum(written - self._config.num_return_steps, low)

    def read(self, index: np.ndarray) -> Transitions:
        slots, following = self._streams.locate(index[:, np.newaxis], self._offsets)
        exists = following > 0
        is_first = self._fields["is_first"][slots] & exists
        is_last = self._fields["is_last"][slots] & exists
        is_end = is_last[:, :-1] | is_first[:, 1:]
        stops = is_end.copy()
        stops[:, :-1] = is_end[:, 1:]
        stops[:, -1] = True
        count = stops.argmax(axis=1) + 1
        # The record at the far end must exist: its observation is the next one.
        rows = np.arange(len(index))
        is_valid = exists[rows, count] & ~is_end[:, 0]
        begin, end = slots[:, 0], slots[rows, count]
        within = self._offsets[:-1] < count[:, np.newaxis]
        slots = slots[:, :-1]
        # Values outside may be undefined, and times zero not be zero (NaN).
        rewards = np.where(within, self._fields["reward"][slots], 0.0)
        discounts = np.where(within, self._fields["discount"][slots], 1.0)
        products = discounts.astype(np.float64).cumprod(axis=1)
        returns = rewards[:, 0].copy()
        if self._config.num_return_steps > 1:
            weights = products[:, :-1] * self._powers[1:]
            returns += (rewards[:, 1:] * weights).sum(axis=1)
        return Transitions(
            is_valid,
            begin,
            end,
            returns.astype(np.float32),
            (self._powers[count - 1] * products[:, -1]).astype(np.float32),
        )

    def observations(self, slots: np.ndarray) -> np.ndarray:
        """Returns the observations of records, with the previous frames."""
        observation = self._fields["observation"]
        frames = self._config.num_stacked_frames
        if frames == 1:
            return observation[slots]
        height, width, channels = observation.shape[1:]
        size = self._streams.share.steps_per_stream
        places = np.empty((len(slots), frames), np.int64)
        for frame in reversed(range(frames)):
            places[:, frame] = slots
            before = slots % size - ~self._fields["is_first"][slots]
            slots = slots - slots % size + before % size
        ring = observation.reshape(-1, height * width, channels)
        stacks = np.empty((len(slots), height * width, frames * channels), np.uint8)
        # Example by example stays in the cache, and NumPy copies a channel twice as
        # fast as pixels of three bytes.
        for stack, row in zip(stacks, places.tolist(), strict=True):
            for frame, place in enumerate(row):
                for channel in range(channels):
                    stack[:, frame * channels + channel] = ring[place, :, channel]
        return stacks.reshape(-1, height, width, frames * channels)

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns index and probability of valid transitions."""
        low, high = self.bounds()
        ends = (high - low).cumsum()
        total = int(ends[-1])
        drawn: list[np.ndarray] = []
        missing = count
        # Final observations start no transition: such samples are drawn again, which
        # keeps the others equally likely.
        for _ in range(_MOST_ROUNDS):
            places = self._rng.integers(total, size=missing)
            streams = np.searchsorted(ends, places, side="right")
            numbers = high[streams] - (ends[streams] - places)
            index = numbers * self._streams.share.num_streams + streams
            drawn.append(index[self.read(index).is_valid])
            missing -= len(drawn[-1])
            if not missing:
                return np.concatenate(drawn), np.full(count, 1 / total)
        raise StarvedReplayError(
            f"none of {total} environment steps starts a transition: every episode "
            f"ends where it begins; {self._streams.describe_actors()}"
        )

    def _starved(self, waited_sec: float) -> StarvedReplayError:
        return StarvedReplayError(
            f"nothing to sample after {waited_sec:.0f} s: {self.num_inserted} "
            f"environment steps were written, {self._min_size} are "
            f"needed, and {self.num_sampled} transitions were sampled "
            f"(samples_per_insert={self._config.samples_per_insert:g}); "
            f"{self._streams.describe_actors()}"
        )

    def _wait(self, num_transitions: int, timeout_sec: float) -> None:
        if self.can_sample(num_transitions) and len(self):
            return
        start = time.monotonic()
        while not (self.can_sample(num_transitions) and len(self)):
            if not self._is_running.is_set():
                paused = time.monotonic()
                self._is_running.wait()
                start += time.monotonic() - paused
            self._on_wait()
            waited = time.monotonic() - start
            if waited > timeout_sec:
                raise self._starved(waited)
            time.sleep(_WAIT_SEC)
        self.wait_sec += time.monotonic() - start


class SumTree:
    """Non-negative weights of leaves, and the sums above them."""

    def __init__(self, num_leaves: int) -> None:
        self._num_leaves = num_leaves
        self._depth = max(num_leaves - 1, 1).bit_length()
        self._first = 1 << self._depth
        # Node k has the parts 2k and 2k + 1; 1 is the root.
        self._sums = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def weights(self, leaves: np.ndarray) -> np.ndarray:
        return self._sums[self._first + leaves]

    def set(self, leaves: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets weights of leaves, int [n]; for duplicates, the last one is used."""
        nodes = self._first + np.asarray(leaves)
        self._sums[nodes] = weights
        for _ in range(self._depth if len(nodes) else 0):
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Returns the leaves whose interval of cumulated weights holds positions."""
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


class PrioritizedReplay(Replay):
    """A transition's probability is proportional to |error| ** alpha.

    New ones have the largest priority so far. The tree has a leaf for each record.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        share = self._streams.share
        num_records = share.num_streams * share.steps_per_stream
        self._tree = SumTree(num_records)
        self._largest = 1.0
        # Records in [low, high) of each stream have their leaves.
        self._low = np.zeros(share.num_streams, np.int64)
        self._high = np.zeros(share.num_streams, np.int64)
        # Index of the record of each leaf: rings wrap around.
        self._owner = np.full(num_records, -1, np.int64)

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
        leaves, _ = self._streams.locate(index)
        with self._lock:
            is_there = self._owner[leaves] == index
            if is_there.any():
                self._largest = max(self._largest, float(priorities.max()))
                weights = priorities[is_there] ** self._config.priority_exponent
                self._tree.set(leaves[is_there], weights)

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        self._follow()
        total = self._tree.total
        if total <= 0:
            raise self._starved(0.0)
        leaves = self._tree.find(self._rng.uniform(0, total, count))
        return self._owner[leaves], self._tree.weights(leaves) / total

    def _follow(self) -> None:
        low, high = self.bounds()
        gone, new, count = [], [], len(low)
        for stream in np.flatnonzero((low != self._low) | (high != self._high)):
            old_low, old_high = self._low[stream], self._high[stream]
            # Nothing before the new low: its leaf may already belong to a later record.
            gone.append(np.arange(old_low, min(low[stream], old_high)) * count + stream)
            first = max(old_high, low[stream])
            new.append(np.arange(first, high[stream]) * count + stream)
        if not new:
            return
        self._low, self._high = low, high
        leaves, _ = self._streams.locate(np.concatenate(gone))
        self._owner[leaves] = -1
        self._tree.set(leaves, 0.0)
        index = np.concatenate(new)
        index = index[self.read(index).is_valid]
        leaves, _ = self._streams.locate(index)
        self._owner[leaves] = index
        self._tree.set(leaves, self._largest**self._config.priority_exponent)


def make_replay(streams: StepStreams, config: D4PGConfig, **options: Any) -> Replay:
    """Returns the replay of a configuration, uniform or prioritized.

    ``options`` are ``min_size``, the records without which nothing is sampled,
    ``seed``, and ``on_wait``, which is called while a sample waits for actors.
    """
    kind = PrioritizedReplay if config.replay == "prioritized" else Replay
    return kind(streams, config, **options)
