"""Streams of episodes, and what transitions of them are by the definition."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.d4pg.replay.streams import StepStreams, StreamsSpec


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
