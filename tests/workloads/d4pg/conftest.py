"""Small learners and the batches they learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import replicator
from workloads.d4pg import config
from workloads.d4pg.acting import actor
from workloads.d4pg.learning import learner

if TYPE_CHECKING:
    from collections.abc import Callable

STATE, FRAMES = (5,), (20, 16, 9)


def make_spec(shape: tuple[int, ...], settings: config.D4PGConfig) -> actor.PolicySpec:
    """The policy of a learner for observations of a shape."""
    return actor.PolicySpec(
        observation_shape=shape,
        action_size=2,
        hidden_sizes=settings.policy_layers,
        kind=settings.network,
        num_conv_filters=settings.num_conv_filters,
        num_features=settings.num_features,
    )


@pytest.fixture
def make_learner() -> Callable[..., learner.Learner]:
    """Makes small learners on one replica, or on more."""

    def make(num_replicas: int = 1, **options: Any) -> learner.Learner:
        settings = config.make_config(
            "smoke",
            {
                "policy_sizes": "8,6",
                "critic_sizes": "7,9",
                "num_conv_filters": 4,
                "num_features": 10,
                "num_atoms": 11,
                **options,
            },
        )
        shape = FRAMES if settings.observations == "pixels" else STATE
        backend = "single" if num_replicas == 1 else "in_graph"
        repl = replicator.create(backend, num_replicas=num_replicas)
        return learner.Learner(repl, settings, make_spec(shape, settings), seed=3)

    return make


@pytest.fixture
def make_transitions() -> Callable[..., dict[str, np.ndarray]]:
    """Makes seeded transitions, as the replay does."""

    def make(count: int, *, uses_pixels: bool = False) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(count)

        def observe() -> np.ndarray:
            if uses_pixels:
                return rng.integers(0, 256, (count, *FRAMES)).astype(np.uint8)
            return rng.normal(size=(count, *STATE)).astype(np.float32)

        return {
            "observation": observe(),
            "action": rng.uniform(-1, 1, (count, 2)).astype(np.float32),
            # The halves differ, so that gradients of two replicas do.
            "reward": np.linspace(0, 5, count, dtype=np.float32),
            "discount": np.full(count, 0.99**4, np.float32),
            "next_observation": observe(),
            "index": np.arange(count),
            "probability": rng.uniform(0.01, 0.2, count).astype(np.float32),
        }

    return make


@pytest.fixture
def feed() -> Callable[..., Any]:
    """Feeds the same transitions in every learner step, an equal share per replica."""

    def make(made: learner.Learner, transitions: dict[str, np.ndarray]) -> Any:
        repl = made._repl
        count = len(transitions["reward"]) // repl.num_replicas
        dataset = tf.data.Dataset.from_tensor_slices(transitions)
        dataset = dataset.batch(count, drop_remainder=True).repeat()
        return repl.make_input_iterator(lambda _: dataset)

    return make
