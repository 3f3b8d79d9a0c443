"""The loop of an actor: act, step, write."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np

from workloads.d4pg.acting.policy import Policy, PolicySpec
from workloads.d4pg.environment.control import (
    BrokenEpisodeError,
    Environment,
    FrameStack,
)
from workloads.d4pg.replay.streams import NO_WEIGHTS

if TYPE_CHECKING:
    from workloads.d4pg.acting.settings import ActorSettings
    from workloads.d4pg.acting.weights import SharedWeights
    from workloads.d4pg.replay.streams import StepStreams, StreamWriter

_WAIT_SEC = 0.001
_LONGEST_WAIT_SEC = 0.01


@dataclasses.dataclass(kw_only=True, slots=True)
class _Place:
    """One environment and the state of its episode; None before it has started."""

    stream_id: int
    environment: Environment
    writer: StreamWriter
    stack: FrameStack | None
    observation: np.ndarray | None = None
    is_first: bool = True


class Actor:
    """Steps several environments in turn with one policy."""

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None,
        *,
        actor_id: int,
        num_restarts: int = 0,
    ) -> None:
        self._streams = streams
        self._weights = weights
        self._actor_id = actor_id
        self._policy = (
            Policy(PolicySpec.from_json(settings.policy)) if settings.policy else None
        )
        self._version = NO_WEIGHTS
        count = settings.environments_per_actor
        stream_ids = range(actor_id * count, (actor_id + 1) * count)
        seeds = np.random.SeedSequence([settings.seed, actor_id, num_restarts])
        self._rng = np.random.default_rng(seeds)
        first_seed = int(seeds.generate_state(1)[0]) % (2**31 - count)
        uses_pixels = settings.observations == "pixels"
        self._places = [
            _Place(
                stream_id=stream_id,
                environment=Environment(
                    settings.name,
                    observations=settings.observations,
                    action_repeat=settings.action_repeat,
                    seed=first_seed + place,
                ),
                writer=streams.writer(stream_id),
                stack=FrameStack(settings.num_stacked_frames) if uses_pixels else None,
            )
            for place, stream_id in enumerate(stream_ids)
        ]
        spec = self._places[0].environment.spec
        self._noise = np.array([[settings.sigma(k)] for k in stream_ids], np.float32)
        shape = spec.observation_shape
        if uses_pixels:
            shape = (*shape[:-1], shape[-1] * settings.num_stacked_frames)
        self._seen = np.zeros((count, *shape), spec.observation_dtype)
        self._action_shape = (count, spec.action_size)
        self._last_time = time.monotonic()
        streams.version[actor_id] = NO_WEIGHTS
        self._beat()

    def run(self) -> None:
        """Steps all environments in an infinite loop, as fast as the learner allows."""
        while True:
            while self._streams.must_wait():
                self._wait()
            self.step()

    def step(self) -> None:
        """Takes one environment step in each environment."""
        actions = self._act()
        for place, action in zip(self._places, actions, strict=True):
            self._advance(place, action)
        self._beat()

    def _act(self) -> np.ndarray:
        """Returns actions in [-1, 1], float32 [environments, action_size]."""
        if self._policy is not None and self._weights is not None:
            newer = self._weights.read(newer_than=self._version)
            if newer is not None:
                self._policy.load(newer[0])
                self._version = newer[1]
                self._streams.version[self._actor_id] = self._version
        if self._policy is None or self._version == NO_WEIGHTS:
            return self._rng.uniform(-1, 1, self._action_shape).astype(np.float32)
        noise = self._rng.standard_normal(self._action_shape, np.float32) * self._noise
        noise += self._policy(self._seen)
        return np.minimum(np.maximum(noise, -1, out=noise), 1, out=noise)

    def _advance(self, place: _Place, action: np.ndarray) -> None:
        try:
            if place.observation is None:
                self._begin(place)
            else:
                self._step(place, action)
        except BrokenEpisodeError:
            # Published records of the episode stay, without this environment step.
            self._streams.num_refused[place.stream_id] += 1
            place.observation = None

    def _begin(self, place: _Place) -> None:
        observation = place.environment.reset()
        place.observation = observation
        place.is_first = True
        self._see(place, observation)

    def _step(self, place: _Place, action: np.ndarray) -> None:
        assert place.observation is not None
        found = place.environment.step(action)
        place.writer.append(
            place.observation,
            action,
            found.reward,
            found.discount,
            is_first=place.is_first,
            is_last=False,
        )
        place.is_first = False
        if not found.is_last:
            place.observation = found.observation
            self._see(place, found.observation)
            return
        place.writer.append(
            found.observation, 0.0, 0.0, 0.0, is_first=False, is_last=True
        )
        self._streams.num_episodes[place.stream_id] += 1
        self._begin(place)

    def _see(self, place: _Place, observation: np.ndarray) -> None:
        """Passes an observation to the policy, with the previous frames."""
        if place.stack is not None:
            observation = (place.stack.reset if place.is_first else place.stack.push)(
                observation
            )
        self._seen[place.stream_id % len(self._places)] = observation

    def _wait(self) -> None:
        start = time.monotonic()
        time.sleep(_WAIT_SEC)
        waited = time.monotonic() - start
        # Longer, and this process was stopped in between (``BasePool.pause``).
        self._streams.idle_sec[self._actor_id] += min(waited, _LONGEST_WAIT_SEC)
        self._beat()

    def _beat(self) -> None:
        now = time.monotonic()
        self._streams.heartbeat[self._actor_id] = now
        self._streams.elapsed_sec[self._actor_id] += now - self._last_time
        self._last_time = now
