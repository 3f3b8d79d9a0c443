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

import abc
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from . import capacity
from .streams import FIELDS, RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from .streams import StepStreams
    from .study import D4PGConfig

_WAIT_SEC = 0.001
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
    num_steps: np.ndarray  # Environment steps from start to end, m; int64 [n].
    reward: np.ndarray  # R, float32 [n].
    discount: np.ndarray  # D, float32 [n].


class TransitionReader:
    def __init__(self, streams: StepStreams, config: D4PGConfig) -> None:
        self._streams = streams
        self._num_return_steps = config.num_return_steps
        self._num_stacked_frames = config.num_stacked_frames
        self._offsets = np.arange(config.num_return_steps + 1)
        self._powers = config.discount ** np.arange(config.num_return_steps)
        self._fields = {name: streams.field(name) for name in FIELDS}

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns each stream's range of records that can start a transition."""
        written = self._streams.num_written.copy()
        size = self._streams.spec.steps_per_stream
        low = written - size + capacity.margin(size)
        # The frames before the first one must exist as well.
        low = np.where(low > 0, low + self._num_stacked_frames - 1, 0)
        return low, np.maximum(written - self._num_return_steps, low)

    def read(self, streams: np.ndarray, numbers: np.ndarray) -> Transitions:
        numbers = numbers[:, np.newaxis] + self._offsets
        exists = numbers < self._streams.num_written[streams][:, np.newaxis]
        slots = self._streams.slots(streams[:, np.newaxis], numbers)
        is_first = self._fields["is_first"][slots] & exists
        is_last = self._fields["is_last"][slots] & exists
        is_end = is_last[:, :-1] | is_first[:, 1:]
        stops = is_end.copy()
        stops[:, :-1] = is_end[:, 1:]
        stops[:, -1] = True
        count = stops.argmax(axis=1) + 1
        # The record at the far end must exist: its observation is the next one.
        is_valid = exists[np.arange(len(numbers)), count] & ~is_end[:, 0]
        within = self._offsets[:-1] < count[:, np.newaxis]
        slots = slots[:, :-1]
        # Values outside may be undefined, and times zero not be zero (NaN).
        rewards = np.where(within, self._fields["reward"][slots], 0.0)
        discounts = np.where(within, self._fields["discount"][slots], 1.0)
        products = discounts.astype(np.float64).cumprod(axis=1)
        returns = rewards[:, 0].copy()
        if self._num_return_steps > 1:
            weights = products[:, :-1] * self._powers[1:]
            returns += (rewards[:, 1:] * weights).sum(axis=1)
        return Transitions(
            is_valid,
            count,
            returns.astype(np.float32),
            (self._powers[count - 1] * products[:, -1]).astype(np.float32),
        )

    def actions(self, streams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return self._fields["action"][self._streams.slots(streams, numbers)]

    def observations(self, streams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns the observations at records, with the previous frames."""
        observation = self._fields["observation"]
        slots = self._streams.slots(streams, numbers)
        if self._num_stacked_frames == 1:
            return observation[slots]
        height, width, channels = observation.shape[1:]
        frames = self._num_stacked_frames
        places = np.empty((len(slots), frames), np.int64)
        for frame in reversed(range(frames)):
            places[:, frame] = slots
            numbers = numbers - ~self._fields["is_first"][slots]
            slots = self._streams.slots(streams, numbers)
        ring = observation.reshape(-1, height * width, channels)
        stacks = np.empty((len(slots), height * width, frames * channels), np.uint8)
        # Example by example stays in the cache, and NumPy copies a channel twice as
        # fast as pixels of three bytes.
        for stack, row in zip(stacks, places.tolist(), strict=True):
            for frame, index in enumerate(row):
                for channel in range(channels):
                    stack[:, frame * channels + channel] = ring[index, :, channel]
        return stacks.reshape(-1, height, width, frames * channels)


class Replay(abc.ABC):
    """Transitions of the last environment steps of all streams."""

    wait_sec: float = 0.0  # Time that ``sample`` has waited for actors.
    num_torn: int = 0  # Samples repeated because an actor overwrote them.

    def __init__(
        self,
        streams: StepStreams,
        config: D4PGConfig,
        *,
        min_size: int,
        seed: int,
        on_wait: Callable[[], None],
    ) -> None:
        self._streams = streams
        self._config, self._min_size = config, min_size
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._is_running = threading.Event()
        self._is_running.set()
        self._rng = np.random.default_rng(seed)
        self._reader = TransitionReader(streams, config)
        self._limiter = RateLimiter(streams, min_size, config.samples_per_insert)

    def __len__(self) -> int:
        """Returns how many records, final observations included, have n after them."""
        low, high = self._reader.bounds()
        return int((high - low).sum())

    @property
    def num_inserted(self) -> int:
        return self._streams.num_inserted()

    @property
    def num_sampled(self) -> int:
        return self._limiter.num_sampled

    def pause(self) -> None:
        self._is_running.clear()

    def resume(self) -> None:
        self._is_running.set()

    def sample(
        self, num_transitions: int, *, timeout_sec: float = 60.0
    ) -> dict[str, np.ndarray]:
        """Samples transitions with replacement; waits until the rate allows it."""
        self._wait(num_transitions, timeout_sec)
        for _ in range(_MOST_ATTEMPTS):
            with self._lock:
                streams, numbers, probability = self._draw(num_transitions)
            transitions = self._reader.read(streams, numbers)
            batch = {
                "observation": self._reader.observations(streams, numbers),
                "action": self._reader.actions(streams, numbers),
                "reward": transitions.reward,
                "discount": transitions.discount,
                "next_observation": self._reader.observations(
                    streams, numbers + transitions.num_steps
                ),
                "index": numbers * self._streams.spec.num_streams + streams,
                "probability": probability,
            }
            oldest = numbers - (self._config.num_stacked_frames - 1)
            if self._streams.is_intact(streams, oldest) and transitions.is_valid.all():
                self._limiter.add_sampled(num_transitions)
                return batch
            self.num_torn += 1
        raise StarvedReplayError(
            f"every one of {_MOST_ATTEMPTS} samples was overwritten while it was read, "
            f"because {self._streams.spec.steps_per_stream} records per stream are too "
            "few for the rate at which actors write: use a larger replay"
        )

    def update_priorities(  # noqa: B027 - uniform sampling has no priorities
        self, index: np.ndarray, td_errors: np.ndarray
    ) -> None:
        """Sets priorities by the size of errors; does nothing for uniform replay."""

    @abc.abstractmethod
    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns streams, numbers and probabilities of valid transitions."""

    def _starved(self, waited_sec: float) -> StarvedReplayError:
        return StarvedReplayError(
            f"nothing to sample after {waited_sec:.0f} s: {self.num_inserted} "
            f"environment steps were written, {self._min_size} are "
            f"needed, and {self.num_sampled} transitions were sampled "
            f"(samples_per_insert={self._config.samples_per_insert:g}); "
            f"{self._streams.describe_actors()}"
        )

    def _wait(self, num_transitions: int, timeout_sec: float) -> None:
        if self._limiter.can_sample(num_transitions) and len(self):
            return
        start = time.monotonic()
        while not (self._limiter.can_sample(num_transitions) and len(self)):
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


class UniformReplay(Replay):
    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = self._reader.bounds()
        ends = (high - low).cumsum()
        total = int(ends[-1])
        drawn: list[tuple[np.ndarray, np.ndarray]] = []
        missing = count
        # Final observations start no transition: such samples are drawn again, which
        # keeps the others equally likely.
        for _ in range(_MOST_ROUNDS):
            places = self._rng.integers(total, size=missing)
            streams = np.searchsorted(ends, places, side="right")
            numbers = high[streams] - (ends[streams] - places)
            is_valid = self._reader.read(streams, numbers).is_valid
            drawn.append((streams[is_valid], numbers[is_valid]))
            missing -= int(is_valid.sum())
            if not missing:
                return *_joined(drawn), np.full(count, 1 / total)
        raise StarvedReplayError(
            f"none of {total} environment steps starts a transition: every episode "
            f"ends where it begins; {self._streams.describe_actors()}"
        )


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
        spec = self._streams.spec
        num_records = spec.num_streams * spec.steps_per_stream
        self._tree = SumTree(num_records)
        self._largest = 1.0
        # Records in [low, high) of each stream have their leaves.
        self._low = np.zeros(spec.num_streams, np.int64)
        self._high = np.zeros(spec.num_streams, np.int64)
        # Number of the record of each leaf: rings wrap around.
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
        numbers, streams = np.divmod(index, self._streams.spec.num_streams)
        leaves = self._streams.slots(streams, numbers)
        with self._lock:
            is_there = self._owner[leaves] == numbers
            if is_there.any():
                self._largest = max(self._largest, float(priorities.max()))
                weights = priorities[is_there] ** self._config.priority_exponent
                self._tree.set(leaves[is_there], weights)

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._follow()
        total = self._tree.total
        if total <= 0:
            raise self._starved(0.0)
        leaves = self._tree.find(self._rng.uniform(0, total, count))
        probability = self._tree.weights(leaves) / total
        streams = leaves // self._streams.spec.steps_per_stream
        return streams, self._owner[leaves], probability

    def _follow(self) -> None:
        low, high = self._reader.bounds()
        gone, new = [], []
        for stream in np.flatnonzero((low != self._low) | (high != self._high)):
            old_low, old_high = self._low[stream], self._high[stream]
            # Nothing before the new low: its leaf may already belong to a later record.
            gone.append(_records(stream, old_low, min(low[stream], old_high)))
            new.append(_records(stream, max(old_high, low[stream]), high[stream]))
        if not new:
            return
        self._low, self._high = low, high
        leaves = self._streams.slots(*_joined(gone))
        self._owner[leaves] = -1
        self._tree.set(leaves, 0.0)
        streams, numbers = _joined(new)
        is_valid = self._reader.read(streams, numbers).is_valid
        leaves = self._streams.slots(streams, numbers)[is_valid]
        self._owner[leaves] = numbers[is_valid]
        self._tree.set(leaves, self._largest**self._config.priority_exponent)


def _records(stream: Any, low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(low, max(low, high), dtype=np.int64)
    return np.full(len(numbers), stream, np.int64), numbers


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Any, Any]:
    streams, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
    return streams, numbers


def make_replay(
    streams: StepStreams,
    config: D4PGConfig,
    *,
    min_size: int,
    seed: int = 0,
    on_wait: Callable[[], None] = lambda: None,
) -> Replay:
    """Returns the replay of a configuration; ``on_wait`` is called while it waits."""
    kind = PrioritizedReplay if config.replay == "prioritized" else UniformReplay
    return kind(streams, config, min_size=min_size, seed=seed, on_wait=on_wait)
