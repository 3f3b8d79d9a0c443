"""Replay: batches of 256 transitions from 20,000 environment steps in shared memory."""

import numpy as np
import pytest

from workloads.d4pg.replay import ReplaySettings, make_replay
from workloads.d4pg.streams import StepStreams, StreamsSpec

NUM_STREAMS = 4
STEPS_PER_STREAM = 5_000
EPISODE = 1_001  # records: 1000 environment steps and the final observation
BATCH = 256
OBSERVATION = np.ones(24, np.float32)


@pytest.fixture(scope="module")
def streams():
    """Streams that are full of episodes."""
    made = StepStreams(
        StreamsSpec(
            num_streams=NUM_STREAMS,
            steps_per_stream=STEPS_PER_STREAM,
            observation_shape=OBSERVATION.shape,
            observation_dtype="float32",
            action_size=1,
        )
    )
    for stream_id in range(NUM_STREAMS):
        writer = made.writer(stream_id)
        for number in range(STEPS_PER_STREAM):
            _append(writer, number)
    return made


def _append(writer, number):
    writer.append(
        OBSERVATION,
        0.0,
        1.0,
        1.0,
        is_first=number % EPISODE == 0,
        is_last=number % EPISODE == EPISODE - 1,
    )


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_sample_256_transitions_and_update_priorities(benchmark, streams, kind):
    """What the learner does before each step."""
    settings = ReplaySettings(is_prioritized=kind == "prioritized")
    replay = make_replay(streams, settings)
    errors = np.random.default_rng(0).gamma(1, 1, BATCH)

    def step():
        batch = replay.sample(BATCH)
        replay.update_priorities(batch["index"], errors)
        return batch

    assert (BATCH, 24) == benchmark(step)["observation"].shape


def test_write_1000_steps(benchmark, streams):
    """What an actor does after its environment."""
    writer = streams.writer(0)

    def write():
        for number in range(1000):
            _append(writer, number)

    benchmark(write)
