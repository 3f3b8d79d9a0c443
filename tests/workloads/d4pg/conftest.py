"""Small learners, the batches they learn from, and streams of episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import replicator
from workloads.d4pg import actor, config, learner
from workloads.d4pg.streams import StepStreams, StreamsSpec

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


def _make_streams(num_streams=1, steps_per_stream=100, **changes) -> StepStreams:
    fields = {
        "num_streams": num_streams,
        "steps_per_stream": steps_per_stream,
        "observation_shape": (1,),
        "observation_dtype": "float32",
        "action_size": 1,
    }
    return StepStreams(StreamsSpec(**{**fields, **changes}))


def _write_episodes(streams, stream, lengths, *, is_broken=()) -> list[dict]:
    """Writes episodes whose values are unique; returns the records."""
    writer, records = streams.writer(stream), []
    rng = np.random.default_rng(int(streams.num_written[stream]) + 1000 * stream)
    for place, length in enumerate(lengths):
        for step in range(length):
            record = {
                "observation": float(len(records) + 10_000 * stream),
                "action": float(rng.uniform(-1, 1)),
                "reward": float(np.float32(rng.normal())),
                "discount": float(rng.choice([0.0, 1.0, 0.5])),
                "is_first": step == 0,
                "is_last": step == length - 1 and place not in is_broken,
            }
            records.append(record)
            shape = streams.spec.observation_shape
            frame = np.full(shape, record["observation"] % 251)
            values = record | {"observation": record["observation"]}
            if streams.spec.observation_dtype == "uint8":
                values["observation"] = frame
            writer.append(**values)
    return records


def _transition_of(records, number, n, discount):
    """Returns end, R and D by the definition, or None: one step after the other."""
    episode_end = number
    while not records[episode_end]["is_last"]:
        if episode_end + 1 == len(records):
            episode_end = None  # still going on
            break
        if records[episode_end + 1]["is_first"]:
            break
        episode_end += 1
    if episode_end == number:
        return None
    end = number + n if episode_end is None else min(number + n, episode_end)
    if end >= len(records):
        return None
    total, factor = 0.0, 1.0
    for k in range(number, end):
        if k > number:
            factor *= discount
        total += factor * records[k]["reward"]
        factor *= records[k]["discount"]
    return end, total, factor


@pytest.fixture(scope="session")
def make_streams():
    """Makes streams of states with one number."""
    return _make_streams


@pytest.fixture(scope="session")
def write_episodes():
    """Writes episodes whose values are unique."""
    return _write_episodes


@pytest.fixture(scope="session")
def transition_of():
    """Finds end, R and D of a transition by the definition."""
    return _transition_of
