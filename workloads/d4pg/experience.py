"""The experience of one input pipeline: actors, the streams they write, and replay.

Actors are separate processes. They write into memory that this process samples
from, and read the policy's weights from memory that this process writes to;
``samples_per_insert`` limits the rates.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from workloads.d4pg import capacity
from workloads.d4pg.actor import ActorSettings
from workloads.d4pg.pool import ActorPool
from workloads.d4pg.ray_pool import RayActorPool
from workloads.d4pg.replay import ReplaySettings, make_replay
from workloads.d4pg.streams import SharedWeights, StepStreams

if TYPE_CHECKING:
    import replicator
    from workloads.d4pg.actor import PolicySpec
    from workloads.d4pg.config import D4PGConfig
    from workloads.d4pg.control import EnvironmentSpec
    from workloads.d4pg.pool import Counters

# Distance between the seeds of one pipeline's environments and the next one's.
_SEEDS_PER_PIPELINE = 100_000


class Experience:
    """Actors and replay of one input pipeline."""

    def __init__(
        self,
        name: str,
        config: D4PGConfig,
        environment: EnvironmentSpec,
        policy: PolicySpec,
        *,
        context: replicator.InputContext,
        seed: int,
    ) -> None:
        """Starts the actors; they act at random until weights are published.

        Each pipeline of a trial has its share of the actors, at least one, of the
        replay's capacity, and of the minimum size before learning starts.
        """
        num_pipelines = context.num_input_pipelines
        capacity.check_rings(config, num_pipelines=num_pipelines)
        share = capacity.share(config, context.input_pipeline_id, num_pipelines)
        seed = seed + _SEEDS_PER_PIPELINE * context.input_pipeline_id
        spec = capacity.streams_spec(config, environment, share)
        capacity.check_memory(config, spec)
        self._error: BaseException | None = None
        self._policy = policy
        self._streams = StepStreams(spec)
        self._weights = SharedWeights(policy.num_floats)
        self.replay = make_replay(
            self._streams,
            ReplaySettings(
                num_return_steps=config.num_return_steps,
                discount=config.discount,
                num_stacked_frames=config.num_stacked_frames,
                min_size_to_sample=share.min_size,
                samples_per_insert=config.samples_per_insert,
                is_prioritized=config.replay == "prioritized",
                priority_exponent=config.priority_exponent,
                seed=seed,
            ),
            self.check,
        )
        kind = {"processes": ActorPool, "ray": RayActorPool}[config.actors]
        self._pool = kind(
            ActorSettings(
                name=name,
                observations=config.observations,
                action_repeat=config.action_repeat,
                num_actors=share.num_actors,
                environments_per_actor=config.environments_per_actor,
                num_stacked_frames=config.num_stacked_frames,
                policy=policy,
                sigma_min=config.noise_low,
                sigma_max=config.noise_high,
                seed=seed,
                niceness=config.actor_niceness,
            ),
            self._streams,
            self._weights,
        )

    def dataset(
        self, *, per_replica_batch_size: int, num_prefetched: int
    ) -> tf.data.Dataset:
        """Returns the infinite pipeline of sampled batches."""
        count = per_replica_batch_size
        shape = (count, *self._policy.observation_shape)
        kind = tf.uint8 if self._policy.uses_pixels else tf.float32
        specs = {
            "observation": (shape, kind),
            "action": ((count, self._policy.action_size), tf.float32),
            "reward": ((count,), tf.float32),
            "discount": ((count,), tf.float32),
            "next_observation": (shape, kind),
            "index": ((count,), tf.int64),
            "probability": ((count,), tf.float32),
        }

        def sample() -> tuple[np.ndarray, ...]:
            try:
                batch = self.replay.sample(count)
            except BaseException as error:
                # TensorFlow wraps it in pages of text; ``explain_failure`` does not.
                self._error = error
                raise
            return tuple(
                np.asarray(batch[name], kind.as_numpy_dtype)
                for name, (_, kind) in specs.items()
            )

        def draw(_: Any) -> dict[str, Any]:
            found = tf.numpy_function(
                sample, [], [kind for _, kind in specs.values()], stateful=True
            )
            return {
                name: tf.ensure_shape(value, shape)
                for value, (name, (shape, _)) in zip(found, specs.items(), strict=True)
            }

        return tf.data.Dataset.counter().map(draw).prefetch(num_prefetched)

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Publishes weights to the actors; ``version`` is their learner step."""
        self._weights.publish(weights, version)

    def policy_version(self) -> float:
        """Returns the learner step of the weights in use, the mean over actors."""
        # Actors without weights have version -1.
        return float(self._streams.version.clip(min=0).mean())

    def check(self) -> None:
        """Raises if actors failed too often."""
        self._pool.check()

    def explain_failure(self) -> None:
        """Raises the error of sampling, if it failed."""
        if self._error is not None:
            raise self._error

    def counters(self) -> Counters:
        """Returns the counters so far."""
        return dataclasses.replace(
            self._pool.counters(),
            num_sampled=self.replay.num_sampled,
            wait_sec=self.replay.wait_sec,
        )

    def pause(self) -> None:
        """Stops actors and sampling until ``resume``."""
        self._pool.pause()
        self.replay.pause()

    def resume(self) -> None:
        """Continues what ``pause`` stopped."""
        self._pool.resume()
        self.replay.resume()

    def close(self) -> None:
        """Terminates the actors and releases the memory, once nothing reads it."""
        self.replay.resume()
        self._pool.close()
        self._weights.close()
        self._streams.close()
