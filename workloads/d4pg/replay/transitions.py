"""n-step transitions and frame stacks, built from records when sampled.

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
import mmap
import os
import tempfile
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.d4pg.config import D4PGConfig
    from workloads.d4pg.replay.streams import StepStreams


@dataclasses.dataclass(frozen=True, slots=True)
class Transitions:
    """n-step transitions, without observations."""

    # Whether the transition exists: all its records exist, and the first one is not a
    # final observation; bool [n]. The other fields are undefined if not.
    is_valid: np.ndarray
    num_steps: np.ndarray  # Environment steps from start to end, m; int64 [n].
    reward: np.ndarray  # R, float32 [n].
    discount: np.ndarray  # D, float32 [n].


class TransitionReader:
    """Reads transitions that start at given records."""

    def __init__(
        self,
        streams: StepStreams,
        *,
        num_return_steps: int,
        discount: float,
        num_stacked_frames: int = 1,
    ) -> None:
        self._streams = streams
        self._size = streams.spec.steps_per_stream
        self._num_return_steps = num_return_steps
        self._num_stacked_frames = num_stacked_frames
        self._offsets = np.arange(num_return_steps + 1)
        self._powers = discount ** np.arange(num_return_steps)
        self._reward = streams.field("reward")
        self._discount = streams.field("discount")
        self._is_first = streams.field("is_first")
        self._is_last = streams.field("is_last")
        self._action = streams.field("action")
        self._observation = streams.field("observation")

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns each stream's range of records that can start a transition."""
        written = self._streams.num_written.copy()
        low = written - self._size + self._streams.spec.margin
        # The frames before the first one must exist as well.
        low = np.where(low > 0, low + self._num_stacked_frames - 1, 0)
        return low, np.maximum(written - self._num_return_steps, low)

    def read(self, streams: np.ndarray, numbers: np.ndarray) -> Transitions:
        """Returns the transitions that start at records."""
        num_steps = self._num_return_steps
        numbers = numbers[:, np.newaxis] + self._offsets
        exists = numbers < self._streams.num_written[streams][:, np.newaxis]
        slots = (streams * self._size)[:, np.newaxis] + numbers % self._size
        is_first = self._is_first[slots] & exists
        is_last = self._is_last[slots] & exists
        is_end = is_last[:, :-1] | is_first[:, 1:]
        rows = np.arange(len(numbers))
        stops = is_end.copy()
        stops[:, :-1] = is_end[:, 1:]
        stops[:, -1] = True
        count = stops.argmax(axis=1) + 1
        # The record at the far end must exist: its observation is the next one.
        is_valid = exists[rows, count] & ~is_end[:, 0]
        within = self._offsets[:-1] < count[:, np.newaxis]
        slots = slots[:, :-1]
        # Values outside may be undefined, and times zero not be zero (NaN).
        rewards = np.where(within, self._reward[slots], 0.0)
        discounts = np.where(within, self._discount[slots], 1.0).astype(np.float64)
        products = discounts.cumprod(axis=1)
        returns = rewards[:, 0].copy()
        if num_steps > 1:
            weights = products[:, :-1] * self._powers[1:]
            returns += (rewards[:, 1:] * weights).sum(axis=1)
        return Transitions(
            is_valid,
            count,
            returns.astype(np.float32),
            (self._powers[count - 1] * products[:, -1]).astype(np.float32),
        )

    def actions(self, streams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns the actions of records, float32 [n, action_size]."""
        return self._action[streams * self._size + numbers % self._size]

    def observations(self, streams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns the observations at records, with the previous frames."""
        first = streams * self._size
        slots = first + numbers % self._size
        if self._num_stacked_frames == 1:
            return self._observation[slots]
        height, width, channels = self._observation.shape[1:]
        frames = self._num_stacked_frames
        places = np.empty((len(slots), frames), np.int64)
        for frame in reversed(range(frames)):
            places[:, frame] = slots
            numbers = numbers - ~self._is_first[slots]
            slots = first + numbers % self._size
        ring = self._observation.reshape(-1, height * width, channels)
        stacks = np.empty((len(slots), height * width, frames * channels), np.uint8)
        # Example by example stays in the cache, and NumPy copies a channel twice as
        # fast as pixels of three bytes.
        for stack, row in zip(stacks, places.tolist(), strict=True):
            for frame, place in enumerate(row):
                for channel in range(channels):
                    stack[:, frame * channels + channel] = ring[place, :, channel]
        return stacks.reshape(-1, height, width, frames * channels)

    def are_intact(self, streams: np.ndarray, numbers: np.ndarray) -> bool:
        """Whether the records of these transitions were not overwritten meanwhile."""
        oldest = numbers - (self._num_stacked_frames - 1)
        return bool(self._streams.is_intact(streams, oldest).all())


# The memory has no name: a child inherits its descriptor. Named shared memory is in
# ``/dev/shm``, which containers limit to 64 MB, and it outlives a killed process.

ArrayLayout = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype of one array."""

_ALIGNMENT = 64  # of an array's first byte: a cache line


class SharedArrays:
    """Named arrays in one piece of shared memory, zero at first.

    Pages are allocated when first written, so unused parts take no memory.

    Attributes:
      descriptor: For children: pass it on with ``pass_fds``.
    """

    def __init__(
        self, layout: Sequence[ArrayLayout], descriptor: int | None = None
    ) -> None:
        self._layout = tuple(layout)
        offsets, size = [], 0
        for _, shape, dtype in self._layout:
            offsets.append(size)
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self.descriptor = _make_memory(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)
        self._arrays = {
            name: np.ndarray(shape, dtype, self._memory, offset)
            for (name, shape, dtype), offset in zip(self._layout, offsets, strict=True)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the array of that name; all processes see what is written to it."""
        return self._arrays[name]

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with its last array."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._arrays.clear()


def _make_memory(size: int) -> int:
    """Returns the descriptor of ``size`` bytes of zeros without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("d4pg-streams")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


# The replay consists of ring buffers of records, one per environment (``streams``).
# Records near a ring's write head can be overwritten while they are read, so they are
# never sampled.

_MARGIN = 16
_MARGIN_SHARE = 50  # one record in this many


def margin(steps_per_stream: int) -> int:
    """Returns the records before the write head of a ring that are never sampled."""
    return _MARGIN + steps_per_stream // _MARGIN_SHARE


def num_transitions(
    steps_per_stream: int, *, num_return_steps: int, num_stacked_frames: int
) -> int:
    """Returns how many records of a full ring can start a transition."""
    around = num_return_steps + num_stacked_frames - 1
    return steps_per_stream - margin(steps_per_stream) - around


def least_steps_per_stream(
    num_needed: int, *, num_return_steps: int, num_stacked_frames: int
) -> int:
    """Returns the smallest ring that holds this many transitions.

    In a ring smaller than twice the margin, most samples would be overwritten while
    they are read.
    """
    size = num_needed
    while True:
        found = num_transitions(
            size,
            num_return_steps=num_return_steps,
            num_stacked_frames=num_stacked_frames,
        )
        if found >= max(num_needed, size / 2):
            return size
        size += 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The share of one pipeline in a trial's actors and replay."""

    num_actors: int  # At least one.
    capacity: int  # Environment steps that it stores.
    min_size: int  # Environment steps before its first batch.


def share(config: D4PGConfig, pipeline_id: int, num_pipelines: int) -> Share:
    """Returns the share of one pipeline; shares are as equal as possible."""
    until = config.num_actors * (pipeline_id + 1) // num_pipelines
    return Share(
        num_actors=max(until - config.num_actors * pipeline_id // num_pipelines, 1),
        capacity=math.ceil(config.replay_capacity / num_pipelines),
        min_size=math.ceil(config.min_replay_size / num_pipelines),
    )


def check_rings(config: D4PGConfig, *, num_pipelines: int = 1) -> None:
    """Raises unless the rings of each pipeline's replay are large enough."""
    shares = [share(config, index, num_pipelines) for index in range(num_pipelines)]
    # Capacities are equal, so the pipeline with most environments has the least each.
    num_actors = max(found.num_actors for found in shares)
    num_streams = num_actors * config.environments_per_actor
    among = f" on each of {num_pipelines} workers" if num_pipelines > 1 else ""
    around = {
        "num_return_steps": config.num_return_steps,
        "num_stacked_frames": config.num_stacked_frames,
    }
    steps_per_stream = math.ceil(shares[0].capacity / num_streams)
    least = least_steps_per_stream(1, **around)
    if steps_per_stream < least:
        raise ValueError(
            f"option replay_capacity={config.replay_capacity!r} keeps "
            f"{steps_per_stream} environment steps of each environment, fewer than the "
            f"{least} that transitions of num_return_steps={config.num_return_steps!r} "
            "need besides those being written: use at least "
            f"{num_pipelines * num_streams * least} with {num_streams} environments"
            f"{among}, or fewer of them"
        )
    held = num_streams * num_transitions(steps_per_stream, **around)
    if shares[0].min_size > held:
        needed = math.ceil(shares[0].min_size / num_streams)
        least = least_steps_per_stream(needed, **around)
        raise ValueError(
            f"option min_replay_size={config.min_replay_size!r} is more than the "
            f"{num_pipelines * held} transitions that replay_capacity="
            f"{config.replay_capacity!r} holds besides those being written{among}: "
            "use at most that, or a replay_capacity of at least "
            f"{num_pipelines * num_streams * least}"
        )


def check_learning(config: D4PGConfig, *, global_batch_size: int) -> None:
    """Raises unless the replay of a trial can feed its learner."""
    capacity, asked = config.replay_capacity, config.samples_per_insert
    if capacity < global_batch_size:
        raise ValueError(
            f"option replay_capacity={capacity!r} is less than the {global_batch_size} "
            "transitions of one learner step: use at least as many, or fewer per "
            "replica (--per-replica-batch-size)"
        )
    if asked and global_batch_size / asked > capacity:
        raise ValueError(
            f"option samples_per_insert={asked!r} requires "
            f"{global_batch_size / asked:,.0f} environment steps before each learner "
            f"step of {global_batch_size} transitions, but replay_capacity="
            f"{capacity!r} stores fewer: use at least "
            f"{_round_up(global_batch_size / capacity)}, or 0 for no limit"
        )


def _round_up(value: float) -> float:
    """Returns the next higher number of two digits, for a suggestion."""
    digits = 1 - math.floor(math.log10(value))
    return round(math.ceil(value * 10**digits) / 10**digits, max(digits, 0))
