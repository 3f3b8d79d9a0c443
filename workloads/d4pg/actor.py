"""Actors: they act with a recent policy, step environments, and write what happens.

Actors do not import TensorFlow: ``Policy`` computes the same as the learner's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .control import BrokenEpisodeError, Environment
from .streams import NO_WEIGHTS

if TYPE_CHECKING:
    from .streams import SharedWeights, StepStreams
    from .study import D4PGConfig

EPSILON = 1e-5  # of layer normalization
KERNEL_SIZE = 3
STRIDES = (2, 1)
_MOST_PIXEL_EXAMPLES = 4


class Policy:
    """The network of ``learner.make_networks``, computed by NumPy from its weights."""

    def __init__(self, config: D4PGConfig, weights: Mapping[str, np.ndarray]) -> None:
        self._sees_frames = config.observations == "pixels"
        self._kind, self._num_layers = config.network, len(config.policy_layers)
        self._weights = weights

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Returns actions in [-1, 1], [examples, action_size] float32."""
        hidden = observations
        if self._sees_frames:
            # In small chunks: the windows of a stack of frames are nine times as large.
            parts = [
                self._features(observations[start : start + _MOST_PIXEL_EXAMPLES])
                for start in range(0, len(observations), _MOST_PIXEL_EXAMPLES)
            ]
            hidden = np.concatenate(parts)
        for index in range(self._num_layers):
            hidden = self._dense(f"dense_{index}", hidden)
            if self._kind == "mlp":
                hidden = np.maximum(hidden, 0.0)
            elif index == 0:
                hidden = np.tanh(self._norm("norm", hidden))
            else:
                hidden = _elu(hidden)
        actions: np.ndarray = np.tanh(self._dense("action", hidden))
        return actions

    def _features(self, frames: np.ndarray) -> np.ndarray:
        hidden = frames.astype(np.float32) * np.float32(1 / 255)
        for index, stride in enumerate(STRIDES):
            hidden = _elu(self._conv(f"conv_{index}", hidden, stride))
        hidden = self._dense("features", hidden.reshape(len(frames), -1))
        features: np.ndarray = np.tanh(self._norm("features_norm", hidden))
        return features

    def _conv(self, name: str, inputs: np.ndarray, stride: int) -> np.ndarray:
        kernel = self._weights[f"{name}/kernel"]
        size = KERNEL_SIZE
        windows = np.lib.stride_tricks.sliding_window_view(inputs, (size, size), (1, 2))
        # [examples, height, width, channels, rows, columns] in the order of the kernel.
        windows = windows[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
        columns = windows.reshape(-1, kernel[..., 0].size)
        outputs = columns @ kernel.reshape(columns.shape[1], -1)
        outputs += self._weights[f"{name}/bias"]
        return outputs.reshape(*windows.shape[:3], -1)

    def _dense(self, name: str, inputs: np.ndarray) -> np.ndarray:
        outputs: np.ndarray = inputs @ self._weights[f"{name}/kernel"]
        outputs += self._weights[f"{name}/bias"]
        return outputs

    def _norm(self, name: str, inputs: np.ndarray) -> np.ndarray:
        centred = inputs - inputs.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normalized: np.ndarray = centred / np.sqrt(variance + np.float32(EPSILON))
        return (
            normalized * self._weights[f"{name}/gamma"] + self._weights[f"{name}/beta"]
        )


def _elu(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.expm1(np.minimum(values, 0.0)))


_WAIT_SEC = 0.001
_LONGEST_WAIT_SEC = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ActorSettings:
    """Where actors act, and their timeouts."""

    name: str  # ``domain:task``.
    config: D4PGConfig
    seed: int = 0  # Seed of initial states and exploration.
    # Without a heartbeat for this long, an actor is killed and replaced.
    stuck_sec: float = 30.0
    start_sec: float = 120.0  # The same, until its first step.
    max_restarts: int = 10  # Total replacements of actors before the pool fails.


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
        self._policy: Policy | None = None  # Until there are weights, at random.
        self._version = NO_WEIGHTS
        self._config = config = settings.config
        self._stream_ids = streams.share.streams_of(actor_id)
        count = len(self._stream_ids)
        seeds = np.random.SeedSequence([settings.seed, actor_id, num_restarts])
        self._rng = np.random.default_rng(seeds)
        first_seed = int(seeds.generate_state(1)[0]) % (2**31 - count)
        self._environments = [
            Environment(settings.name, config, seed=first_seed + index)
            for index in range(count)
        ]
        self._writers = [streams.writer(k) for k in self._stream_ids]
        spec = self._environments[0].spec
        total = streams.share.num_streams
        deviations = [[config.noise_deviation(k, total)] for k in self._stream_ids]
        self._noise = np.array(deviations, np.float32)
        shape = spec.seen_shape(config.num_stacked_frames)
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
        for index, action in enumerate(self._act()):
            self._advance(index, action)
        self._beat()

    def _act(self) -> np.ndarray:
        """Returns actions in [-1, 1], float32 [environments, action_size]."""
        newer = self._weights and self._weights.read(newer_than=self._version)
        if newer:
            weights, self._version = newer
            self._policy = Policy(self._config, weights)
            self._streams.version[self._actor_id] = self._version
        if self._policy is None:
            return self._rng.uniform(-1, 1, self._action_shape).astype(np.float32)
        noise = self._rng.standard_normal(self._action_shape, np.float32) * self._noise
        noise += self._policy(self._seen)
        return np.minimum(np.maximum(noise, -1, out=noise), 1, out=noise)

    def _advance(self, index: int, action: np.ndarray) -> None:
        environment = self._environments[index]
        try:
            if environment.is_over:
                environment.reset()
            else:
                self._step(index, environment, action)
        except BrokenEpisodeError:
            # Published records of the episode stay, without this environment step.
            self._streams.num_refused[self._stream_ids[index]] += 1
        else:
            self._seen[index] = environment.seen

    def _step(self, index: int, environment: Environment, action: np.ndarray) -> None:
        append = self._writers[index]
        before, is_first = environment.observation, environment.is_first
        observation, reward, discount, is_last = environment.step(action)
        append(before, action, reward, discount, is_first, False)
        if is_last:
            append(observation, 0.0, 0.0, 0.0, False, True)
            self._streams.num_episodes[self._stream_ids[index]] += 1
            environment.reset()

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
