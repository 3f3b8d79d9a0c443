"""Random transitions without environments, to measure the learner alone.

A fixed set of transitions replaces replay, and is sampled uniformly. The same
seed gives the same batches, on every backend and machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    import replicator
    from workloads.d4pg.acting.policy import PolicySpec

# Those of walker, a body of medium size.
STATE_SIZE, ACTION_SIZE = 24, 6
_NUM_STATES, _NUM_FRAMES = 4096, 64


def make_transitions(
    spec: PolicySpec, *, discount: float, num_return_steps: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns transitions as from replay; rewards are those of random returns.

    Args:
      spec: Shapes of observations and actions.
      discount: Discount per environment step.
      num_return_steps: n; each step's reward is in [0, 1], as in the control suite.
      seed: Seed of all values.
    """
    rng = np.random.default_rng(seed)
    count = _NUM_FRAMES if spec.uses_pixels else _NUM_STATES
    shape = (count, *spec.observation_shape)

    def observe() -> np.ndarray:
        if spec.uses_pixels:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.standard_normal(shape, dtype=np.float32)

    rewards = rng.uniform(size=(count, num_return_steps))
    weights = discount ** np.arange(num_return_steps)
    return {
        "observation": observe(),
        "action": rng.uniform(-1, 1, (count, spec.action_size)).astype(np.float32),
        "reward": (rewards @ weights).astype(np.float32),
        "discount": np.full(count, weights[-1], np.float32),
        "next_observation": observe(),
        "index": np.arange(count),
        "probability": np.full(count, 1 / count, np.float32),
    }


def dataset(
    transitions: dict[str, np.ndarray],
    context: replicator.InputContext,
    *,
    per_replica_batch_size: int,
    seed: int,
) -> tf.data.Dataset:
    """Returns an infinite pipeline of batches that are sampled with replacement."""
    store = {name: tf.constant(values) for name, values in transitions.items()}
    count = len(transitions["reward"])

    def draw(number: Any) -> dict[str, Any]:
        index = tf.random.stateless_uniform(
            [per_replica_batch_size],
            seed=tf.stack(
                [tf.constant(seed + context.input_pipeline_id, tf.int64), number]
            ),
            maxval=count,
            dtype=tf.int32,
        )
        return {name: tf.gather(values, index) for name, values in store.items()}

    return tf.data.Dataset.counter().map(draw).prefetch(2)
