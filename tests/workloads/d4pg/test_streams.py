"""Streams of environment steps: what a process writes, another reads, and who waits."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from workloads.d4pg.replay import ReplaySettings, StarvedReplayError, make_replay
from workloads.d4pg.streams import RateLimiter, SharedArrays, StepStreams, StreamsSpec

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Writes as fast as it can; every field of a record follows from its number.
WRITER = """
import sys
import numpy as np
from workloads.d4pg.streams import StepStreams, StreamsSpec
streams = StepStreams(eval(sys.argv[1]), int(sys.argv[2]))
writer = streams.writer(0)
number = int(streams.num_written[0])
print("started at", number, flush=True)
observation = np.empty(streams.spec.observation_shape, np.float32)
while True:
    observation[:] = number
    writer.append(observation, number % 1000, number % 7, 1.0,
                  is_first=number % 50 == 0, is_last=number % 50 == 49)
    number += 1
"""


def make_spec(**changes):
    fields = {
        "num_streams": 1,
        "steps_per_stream": 100,
        "observation_shape": (3,),
        "observation_dtype": "float32",
        "action_size": 2,
    }
    return StreamsSpec(**{**fields, **changes})


def start_writer(streams):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            WRITER,
            repr(streams.spec),
            str(streams.descriptor),
        ],
        pass_fds=(streams.descriptor,),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_record_is_there_once_it_is_counted():
    """Fields come back as they were written, from another view of the memory."""
    with StepStreams(make_spec(num_streams=2)) as streams:
        other = StepStreams(streams.spec, os.dup(streams.descriptor))
        writer = other.writer(1)
        writer.append(
            np.arange(3), np.array([0.5, -1]), 2.5, 0.0, is_first=True, is_last=False
        )

        assert [0, 1] == streams.num_written.tolist()
        assert [0, 1, 2] == streams.field("observation")[100].tolist()
        assert [0.5, -1] == streams.field("action")[100].tolist()
        assert (2.5, 0.0) == (
            streams.field("reward")[100],
            streams.field("discount")[100],
        )
        assert (True, False) == (
            streams.field("is_first")[100],
            streams.field("is_last")[100],
        )
        other.close()


def test_memory_has_no_name_and_is_taken_when_it_is_used():
    """A gigabyte of replay costs nothing before it is filled."""
    frames = make_spec(
        steps_per_stream=60_000,
        observation_shape=(84, 84, 3),
        observation_dtype="uint8",
    )
    with StepStreams(frames) as streams:
        before = os.fstat(streams.descriptor).st_blocks
        streams.writer(0).append(
            np.ones((84, 84, 3)), 0, 0, 1, is_first=True, is_last=False
        )
        after = os.fstat(streams.descriptor).st_blocks

        assert streams.spec.memory_bytes > 2**30
        # Where the kernel gives huge pages, one of them.
        assert 512 * (after - before) <= 2**22
        assert 0 == os.fstat(streams.descriptor).st_nlink


def test_memory_works_where_there_is_no_memfd(monkeypatch):
    """An unlinked file stands in for it."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    arrays = SharedArrays([("a", (3,), "int64"), ("b", (2,), "uint8")])
    arrays["a"][:] = 1, 2, 3
    arrays["b"][:] = 4, 5
    other = SharedArrays(
        [("a", (3,), "int64"), ("b", (2,), "uint8")], os.dup(arrays.descriptor)
    )

    assert [1, 2, 3] == other["a"].tolist()
    assert [4, 5] == other["b"].tolist()
    assert 0 == os.fstat(arrays.descriptor).st_nlink
    arrays.close()
    other.close()


def test_a_frame_is_stored_once():
    """Pixel memory per transition that can be sampled is at most 1.15 frames."""
    spec = make_spec(
        num_streams=8,
        steps_per_stream=10_000,
        observation_shape=(84, 84, 3),
        observation_dtype="uint8",
    )
    with StepStreams(spec) as streams:
        replay = make_replay(streams, ReplaySettings(num_stacked_frames=3))
        # As if full: nothing is read.
        streams.num_written[:] = 30_000

        frames_per_transition = spec.memory_bytes / len(replay) / (84 * 84 * 3)

    assert 1.0 < frames_per_transition <= 1.15


def test_the_state_of_each_actor_is_reported_in_a_line():
    with StepStreams(make_spec(num_streams=4, num_actors=2)) as streams:
        streams.num_written[:] = 5, 6, 0, 0
        streams.num_refused[:] = 0, 0, 0, 3
        streams.heartbeat[0] = time.monotonic() - 7

        assert re.fullmatch(
            r"actor 0: 11 environment steps, 0 refused, last heartbeat \d+ s ago; "
            r"actor 1: 0 environment steps, 3 refused, no heartbeat",
            streams.describe_actors(),
        )


@pytest.mark.processes
def test_no_sample_mixes_two_records_while_a_process_writes():
    """The ring is so small that it is overwritten all the time, many times over."""
    size = 4000
    with StepStreams(
        make_spec(steps_per_stream=size, observation_shape=(64,))
    ) as streams:
        replay = make_replay(
            streams, ReplaySettings(min_size_to_sample=300, discount=1)
        )
        writer = start_writer(streams)
        try:
            end = time.monotonic() + 180
            newest = 0
            while newest < 20 * size and time.monotonic() < end:
                batch = replay.sample(64)
                numbers = batch["index"]
                steps = np.minimum(5, 49 - numbers % 50)
                rewards = (
                    sum((number + k) % 7 for k in range(count))
                    for number, count in zip(numbers, steps, strict=True)
                )
                after = numbers + steps

                assert (batch["observation"] == numbers[:, None]).all()
                assert (batch["next_observation"] == after[:, None]).all()
                assert (batch["action"] == numbers[:, None] % 1000).all()
                assert list(rewards) == batch["reward"].tolist()
                newest = max(newest, int(numbers.max()))
        finally:
            writer.kill()
            writer.wait()

    assert newest >= 20 * size


@pytest.mark.processes
def test_a_killed_writer_loses_its_unpublished_record_only():
    """Its replacement continues with the next number."""
    with StepStreams(make_spec()) as streams:
        starts = []
        for _ in range(2):
            writer = start_writer(streams)
            starts.append(int(writer.stdout.readline().split()[-1]))
            while streams.num_written[0] < starts[-1] + 500:
                assert writer.poll() is None
                time.sleep(0.01)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        written = int(streams.num_written[0])
        last = np.arange(written - 50, written)
        slots = last % 100

        assert [0, starts[1]] == starts
        assert starts[1] >= 500
        np.testing.assert_array_equal(
            np.repeat(last[:, None], 3, axis=1), streams.field("observation")[slots]
        )
        np.testing.assert_array_equal(last % 7, streams.field("reward")[slots])


@pytest.mark.parametrize("ratio", [0.5, 4.0, 32.0])
def test_samples_per_insert_stay_near_their_ratio(ratio, make_streams):
    """Whoever is faster waits, and never both."""
    rng = np.random.default_rng(0)
    with make_streams(2, 2000) as streams:
        limiter = RateLimiter(
            streams, ReplaySettings(min_size_to_sample=100, samples_per_insert=ratio)
        )
        for _ in range(2000):
            may_write = not streams.must_wait()
            may_sample = limiter.can_sample(64)

            assert may_write or may_sample
            if may_sample and (rng.uniform() < 0.5 or not may_write):
                limiter.add_sampled(64)
            elif may_write:
                streams.num_written[rng.integers(2)] += 1
            balance = (streams.num_inserted() - 100) * ratio - limiter.num_sampled
            assert abs(balance) <= max(64, 0.1 * 100 * ratio) + ratio + 64 or (
                streams.num_inserted() <= 100
            )


def test_actors_fill_the_replay_before_anybody_samples(make_streams):
    """Then they wait, until something was sampled."""
    with make_streams() as streams:
        chosen = ReplaySettings(
            min_size_to_sample=50, samples_per_insert=8, error_buffer=16
        )
        limiter = RateLimiter(streams, chosen)
        streams.num_written[0] = 49

        assert not limiter.can_sample(8)
        assert not streams.must_wait()
        streams.num_written[0] = 52
        assert limiter.can_sample(8)
        assert streams.must_wait()
        limiter.add_sampled(8)
        assert not streams.must_wait()
        limiter.add_sampled(24)
        assert not limiter.can_sample(8)


def test_a_buffer_that_would_stop_both_sides_is_refused(make_streams):
    """Learner and actors would wait for each other for ever."""
    with make_streams() as streams:
        chosen = ReplaySettings(
            min_size_to_sample=10, samples_per_insert=4, error_buffer=7
        )
        replay = make_replay(streams, chosen)
        with pytest.raises(
            ValueError, match=r"error_buffer=7 must be at least half of"
        ):
            replay.sample(16)


def test_a_starved_replay_says_what_actors_did(make_streams, write_episodes):
    calls = []
    with make_streams(2, num_actors=2) as streams:
        write_episodes(streams, 1, [12])
        replay = make_replay(
            streams, ReplaySettings(min_size_to_sample=50), lambda: calls.append(1)
        )
        message = (
            r"^nothing to sample after \d+ s: 12 environment steps were written, 50 "
            r"are needed, and 0 transitions were sampled \(samples_per_insert=0\); "
            r"actor 0: 0 environment steps, 0 refused, no heartbeat; "
            r"actor 1: 12 [^\n]*$"
        )
        with pytest.raises(StarvedReplayError, match=message):
            replay.sample(4, timeout_sec=0.05)

        assert calls
        assert 0 == len(
            make_replay(make_streams(), ReplaySettings(min_size_to_sample=1))
        )


def test_a_sample_waits_for_actors_and_counts_the_time(make_streams, write_episodes):
    """The learner's share of waiting is a figure of the harness."""
    with make_streams() as streams:
        thread = threading.Thread(
            target=lambda: (time.sleep(0.2), write_episodes(streams, 0, [60]))
        )
        replay = make_replay(
            streams,
            ReplaySettings(min_size_to_sample=50),
            lambda: thread.ident or thread.start(),
        )
        batch = replay.sample(32)
        thread.join()

    assert 0.15 < replay.wait_sec < 60
    assert (32, 1) == batch["observation"].shape
    assert (32, 60) == (replay.num_sampled, replay.num_inserted)


def test_episodes_without_a_step_are_not_waited_for(make_streams, write_episodes):
    """Nothing begins a transition, however much is written."""
    with make_streams() as streams:
        write_episodes(streams, 0, [1] * 60)
        replay = make_replay(streams, ReplaySettings(min_size_to_sample=10))
        with pytest.raises(StarvedReplayError, match="every episode ends where it beg"):
            replay.sample(4)
