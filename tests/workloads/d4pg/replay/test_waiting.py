"""Who waits for whom: the rate of samples per insert, and a replay without data."""

import threading
import time

import numpy as np
import pytest

from workloads.d4pg.replay.make import make_replay
from workloads.d4pg.replay.rate_limiter import RateLimiter
from workloads.d4pg.replay.replay import ReplaySettings, StarvedReplayError


@pytest.mark.parametrize("ratio", [0.5, 4.0, 32.0])
def test_samples_per_insert_stay_near_their_ratio(ratio, make_streams):
    """Whoever is faster waits, and never both."""
    rng = np.random.default_rng(0)
    with make_streams(2, 2000) as streams:
        limiter = RateLimiter(
            streams, min_size_to_sample=100, samples_per_insert=ratio, error_buffer=0
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
        limiter = RateLimiter(
            streams, min_size_to_sample=50, samples_per_insert=8, error_buffer=16
        )
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
    """In one line, after a bounded wait that it has counted."""
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
