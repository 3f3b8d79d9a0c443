"""The experience of one input pipeline: actors, the streams they write, and replay.

Actors are separate processes. They write into memory that this process samples
from, and read the policy's weights from memory that this process writes to;
``samples_per_insert`` limits the rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from .actor import ActorSettings
from .capacity import Share, check_rings
from .control import FRAME_SIZE, EnvironmentSpec
from .pool import ActorPool, RayActorPool
from .replay import make_replay
from .streams import SharedWeights, StepStreams

if TYPE_CHECKING:
    import replicator

    from .study import D4PGConfig
    from .train import Training

# Distance between the seeds of one pipeline's environments and the next one's.
_SEEDS_PER_PIPELINE = 100_000


class Experience:
    """Actors and replay of one input pipeline of a training."""

    pool: ActorPool | RayActorPool

    def __init__(self, training: Training, context: replicator.InputContext) -> None:
        config, environment = training.config, training.environment
        num_pipelines = context.num_input_pipelines
        check_rings(config, num_pipelines=num_pipelines)
        share = Share.of(config, context.input_pipeline_id, num_pipelines)
        share.check_memory(config, environment)
        seed = training.seed + _SEEDS_PER_PIPELINE * context.input_pipeline_id
        self._environment, self._num_frames = environment, config.num_stacked_frames
        self.error: BaseException | None = None
        self._streams = StepStreams(share, environment)
        weights = training.policy_variables().items()
        self.weights = SharedWeights({name: tuple(w.shape) for name, w in weights})
        self.replay = make_replay(
            self._streams,
            config,
            min_size=share.min_size,
            seed=seed,
            on_wait=lambda: self.pool.check(),  # noqa: PLW0108 - made below
        )
        settings = ActorSettings(name=training.data, config=config, seed=seed)
        kind = {"processes": ActorPool, "ray": RayActorPool}[config.actors]
        self.pool = kind(settings, self._streams, self.weights)

    def dataset(self, count: int, *, num_prefetched: int) -> tf.data.Dataset:
        """Returns sampled batches of ``count`` transitions without end."""
        environment = self._environment
        observation = tf.TensorSpec(
            [count, *environment.seen_shape(self._num_frames)],
            environment.observation_dtype,
        )
        number = tf.TensorSpec([count])
        specs = {
            "observation": observation,
            "action": tf.TensorSpec([count, environment.action_size]),
            "reward": number,
            "discount": number,
            "next_observation": observation,
            "index": tf.TensorSpec([count], tf.int64),
            "probability": number,
        }

        def sample() -> tuple[np.ndarray, ...]:
            try:
                batch = self.replay.sample(count)
            except BaseException as error:
                self.error = error  # TensorFlow wraps it in pages of text
                raise
            return tuple(
                np.asarray(batch[name], spec.dtype.as_numpy_dtype)
                for name, spec in specs.items()
            )

        def draw(_: Any) -> dict[str, Any]:
            kinds = [spec.dtype for spec in specs.values()]
            values = tf.numpy_function(sample, [], kinds, stateful=True)
            return {
                name: tf.ensure_shape(value, spec.shape)
                for value, (name, spec) in zip(values, specs.items(), strict=True)
            }

        return tf.data.Dataset.counter().map(draw).prefetch(num_prefetched)

    def policy_version(self) -> float:
        """Returns the learner step of the weights in use, the mean over actors."""
        # Actors without weights have version -1.
        return float(self._streams.version.clip(min=0).mean())

    def counters(self) -> dict[str, float]:
        return {
            **self.pool.counters(),
            "num_sampled": self.replay.num_sampled,
            "wait_sec": self.replay.wait_sec,
        }

    def pause(self) -> None:
        self.pool.pause()
        self.replay.pause()

    def resume(self) -> None:
        self.pool.resume()
        self.replay.resume()

    def close(self) -> None:
        """Terminates the actors and releases the memory, once nothing reads it."""
        self.replay.resume()
        self.pool.close()
        self.weights.close()
        self._streams.close()


# A fixed set of transitions replaces replay, and is sampled uniformly. The same seed
# gives the same batches, on every backend and machine.

_NUM_STATES, _NUM_FRAMES = 4096, 64


def synthetic_spec(config: D4PGConfig) -> EnvironmentSpec:
    """Returns the shapes of walker, a body of medium size."""
    is_pixels = config.observations == "pixels"
    return EnvironmentSpec(
        observation_shape=(FRAME_SIZE, FRAME_SIZE, 3) if is_pixels else (24,),
        observation_dtype="uint8" if is_pixels else "float32",
        action_size=6,
    )


def synthetic_dataset(
    training: Training, context: replicator.InputContext, size: int
) -> tf.data.Dataset:
    """Returns an infinite pipeline of batches that are sampled with replacement."""
    config, spec = training.config, training.environment
    rng = np.random.default_rng(training.seed)
    is_pixels = config.observations == "pixels"
    count = _NUM_FRAMES if is_pixels else _NUM_STATES
    shape = (count, *spec.seen_shape(config.num_stacked_frames))

    def observe() -> np.ndarray:
        if is_pixels:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.standard_normal(shape, dtype=np.float32)

    rewards = rng.uniform(size=(count, config.num_return_steps))
    weights = config.discount ** np.arange(config.num_return_steps)
    transitions = {
        "observation": observe(),
        "action": rng.uniform(-1, 1, (count, spec.action_size)).astype(np.float32),
        "reward": (rewards @ weights).astype(np.float32),
        "discount": np.full(count, weights[-1], np.float32),
        "next_observation": observe(),
        "index": np.arange(count),
        "probability": np.full(count, 1 / count, np.float32),
    }
    store = {name: tf.constant(values) for name, values in transitions.items()}
    first_seed = tf.constant(training.seed + context.input_pipeline_id, tf.int64)

    def draw(number: Any) -> dict[str, Any]:
        seed = tf.stack([first_seed, number])
        index = tf.random.stateless_uniform([size], seed, 0, count, tf.int32)
        return {name: tf.gather(values, index) for name, values in store.items()}

    return tf.data.Dataset.counter().map(draw).prefetch(2)
