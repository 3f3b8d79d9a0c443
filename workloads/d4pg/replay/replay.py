"""Base of uniform and prioritized replay: waiting, reading, counting."""

from __future__ import annotations

import abc
import dataclasses
import math
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from workloads.d4pg.replay import transitions
from workloads.d4pg.replay.transitions import TransitionReader
from workloads.spec import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

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


_WAIT_SEC = 0.001
_MOST_ATTEMPTS = 100


class StarvedReplayError(RuntimeError):
    """Nothing could be sampled for too long; the message describes each actor."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySettings:
    """How transitions are made and sampled; the defaults are the published values."""

    num_return_steps: int = 5  # n of the n-step returns.
    discount: float = 0.99  # Discount of the agent.
    num_stacked_frames: int = 1  # Frames of an observation from pixels; 1 for states.
    min_size_to_sample: int = 1000  # Records before anything is sampled.
    # Transitions sampled per record inserted; 0 for no limit.
    samples_per_insert: float = 0.0
    # Allowed deviation from the ratio, in transitions; 0 for the default.
    error_buffer: float = 0.0
    # Whether transitions are sampled by priority (Schaul et al. 2015).
    is_prioritized: bool = False
    priority_exponent: float = 0.6  # Alpha of the priorities.
    seed: int = 0  # Seed of the sampling.

    def __post_init__(self) -> None:
        for name in ("num_return_steps", "num_stacked_frames", "min_size_to_sample"):
            check_range(name, getattr(self, name), low=1)
        check_range("discount", self.discount, low=0.0, high=1.0)
        for name in ("samples_per_insert", "error_buffer", "priority_exponent"):
            check_range(name, getattr(self, name), low=0.0)


class Replay(abc.ABC):
    """Transitions of the last environment steps of all streams.

    One thread samples; another one may update priorities.

    Attributes:
      wait_sec: Time that ``sample`` has waited for actors.
      num_torn: Samples that were repeated because an actor overwrote them.
    """

    def __init__(
        self,
        streams: StepStreams,
        settings: ReplaySettings,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        _check_sizes(streams, settings)
        self.wait_sec = 0.0
        self.num_torn = 0
        self._streams = streams
        self._settings = settings
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._is_running = threading.Event()
        self._is_running.set()
        self._rng = np.random.default_rng(settings.seed)
        self._reader = TransitionReader(
            streams,
            num_return_steps=settings.num_return_steps,
            discount=settings.discount,
            num_stacked_frames=settings.num_stacked_frames,
        )
        self._limiter = RateLimiter(
            streams,
            min_size_to_sample=settings.min_size_to_sample,
            samples_per_insert=settings.samples_per_insert,
            error_buffer=settings.error_buffer,
        )

    def __len__(self) -> int:
        """Returns how many records, final observations included, have n after them."""
        low, high = self._reader.bounds()
        return int((high - low).sum())

    @property
    def memory_bytes(self) -> int:
        """Bytes of all records of a full replay."""
        return self._streams.memory_bytes

    @property
    def num_inserted(self) -> int:
        """Total records that actors have written."""
        return self._streams.num_inserted()

    def pause(self) -> None:
        """Makes sampling wait without polling while the actors are stopped."""
        self._is_running.clear()

    def resume(self) -> None:
        """Ends ``pause``; the time in between counts as nobody's wait."""
        self._is_running.set()

    @property
    def num_sampled(self) -> int:
        """Total transitions that were sampled."""
        return self._limiter.num_sampled

    def sample(
        self, num_transitions: int, *, timeout_sec: float = 60.0
    ) -> dict[str, np.ndarray]:
        """Samples transitions with replacement; waits until the rate allows it."""
        self._wait(num_transitions, timeout_sec)
        for _ in range(_MOST_ATTEMPTS):
            with self._lock:
                streams, numbers, probability = self._draw(num_transitions)
            found = self._reader.read(streams, numbers)
            batch = {
                "observation": self._reader.observations(streams, numbers),
                "action": self._reader.actions(streams, numbers),
                "reward": found.reward,
                "discount": found.discount,
                "next_observation": self._reader.observations(
                    streams, numbers + found.num_steps
                ),
                "index": numbers * self._streams.spec.num_streams + streams,
                "probability": probability,
            }
            is_intact = self._reader.are_intact(streams, numbers)
            if is_intact and found.is_valid.all():
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
        settings = self._settings
        return StarvedReplayError(
            f"nothing to sample after {waited_sec:.0f} s: {self.num_inserted} "
            f"environment steps were written, {settings.min_size_to_sample} are "
            f"needed, and {self.num_sampled} transitions were sampled "
            f"(samples_per_insert={settings.samples_per_insert:g}); "
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
            if self._on_wait is not None:
                self._on_wait()
            waited = time.monotonic() - start
            if waited > timeout_sec:
                raise self._starved(waited)
            time.sleep(_WAIT_SEC)
        self.wait_sec += time.monotonic() - start


def _check_sizes(streams: StepStreams, settings: ReplaySettings) -> None:
    spec = streams.spec
    around = {
        "num_return_steps": settings.num_return_steps,
        "num_stacked_frames": settings.num_stacked_frames,
    }
    least = transitions.least_steps_per_stream(1, **around)
    if spec.steps_per_stream < least:
        raise ValueError(
            f"a replay of {spec.steps_per_stream} environment steps per environment is "
            f"too small: transitions of {settings.num_return_steps} steps need at "
            f"least {least}; use a larger replay or fewer environments"
        )
    held = spec.num_streams * transitions.num_transitions(
        spec.steps_per_stream, **around
    )
    if settings.min_size_to_sample > held:
        raise ValueError(
            f"option min_size_to_sample={settings.min_size_to_sample} is more than the "
            f"{held} transitions that the replay can hold: use at most that, or a "
            "larger replay"
        )
