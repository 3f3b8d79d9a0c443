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
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
