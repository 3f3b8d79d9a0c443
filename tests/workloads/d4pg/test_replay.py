"""Replay: what actors write, what is drawn from it, how much it holds, who waits."""

import contextlib
import os
import subprocess
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_programs import child, make_streams, published

from workloads import WORKLOADS
from workloads.d4pg import (
    EnvironmentSpec,
    Share,
    StarvedReplayError,
    StepStreams,
    make_replay,
)

# Least probability of a chi-square statistic that chance is believed of.
CHANCE = 1e-3
FRAMES = {"observation_shape": (84, 84, 3), "observation_dtype": "uint8"}
SMALL_FRAMES = {**FRAMES, "observation_shape": (2, 2, 3)}


def make_config(*, num_frames=1, **options):
    observations = "state" if num_frames == 1 else "pixels"
    given = {"replay": "uniform", "observations": observations, **options}
    return published("d4pg", **given)


def replay_of(streams, on_wait=lambda: None, min_size=1, seed=0, **options):
    config = make_config(**options)
    return make_replay(streams, config, min_size=min_size, seed=seed, on_wait=on_wait)


def write_episodes(streams, stream, lengths, *, is_broken=()):
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
            seen = record["observation"]
            if streams.environment.observation_dtype == "uint8":
                seen = np.full(streams.environment.observation_shape, seen % 251)
            writer(*{**record, "observation": seen}.values())
    return records


def transition_of(records, number, n=5, discount=0.99):
    """Returns end, R and D by Acme's definition, or None: one step after the other."""
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


def stack_of(records, number, num_frames):
    values = []
    for _ in range(num_frames):
        values.append(records[number]["observation"])
        if not records[number]["is_first"]:
            number -= 1
    return values[::-1]


episodes = st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=14)


@settings(max_examples=100)
@given(
    episodes,
    st.integers(1, 6),
    st.sampled_from([1.0, 0.99, 0.5]),
    st.sampled_from([1, 3]),
)
def test_transitions_are_those_of_the_definition(pattern, n, discount, num_frames):
    with make_streams(2, 60, **(SMALL_FRAMES if num_frames > 1 else {})) as streams:
        reader = replay_of(
            streams, num_return_steps=n, discount=discount, num_frames=num_frames
        )
        lengths = [length for length, _ in pattern]
        broken = {place for place, (_, is_broken) in enumerate(pattern) if is_broken}
        write_episodes(streams, 0, [3])
        records = write_episodes(streams, 1, lengths, is_broken=broken)
        low, high = (int(bound[1]) for bound in reader.bounds())
        numbers = np.arange(low, high)
        index = 2 * numbers + 1  # of the second of two streams
        found = reader.read(index)
        expected = [transition_of(records, k, n, discount) for k in numbers]

        # Records that may be overwritten soon are not drawn.
        oldest = len(records) - 60 + 17
        assert (oldest + num_frames - 1 if oldest > 0 else 0) == low
        assert max(low, len(records) - n) == high
        assert [e is not None for e in expected] == found.is_valid.tolist()
        for row in np.flatnonzero(found.is_valid):
            end, total, factor = expected[row]
            assert 60 + end % 60 == found.end[row]  # in the second ring
            assert total == pytest.approx(found.reward[row], rel=1e-5, abs=1e-5)
            assert factor == pytest.approx(found.discount[row], rel=1e-6)
            for k in (numbers[row], end):
                slots, _ = streams.locate(np.array([2 * k + 1]))
                values = reader.observations(slots).ravel()
                stack = stack_of(records, int(k), num_frames)
                if num_frames > 1:
                    stack = [v % 251 for v in stack for _ in range(3)] * 4
                assert stack == values.tolist()
            (action,) = streams.field("action")[found.begin[row]]
            assert np.float32(records[numbers[row]]["action"]) == action


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "with errors"])
def test_transitions_are_drawn_by_their_priorities(kind):
    chosen = {"replay": "uniform" if kind == "uniform" else "prioritized", "seed": 1}
    with make_streams(3) as streams:
        records = [
            write_episodes(streams, 0, [20, 7, 30, 9]),
            write_episodes(streams, 1, [12, 40]),
            write_episodes(streams, 2, [50] * 4),
        ]
        replay = replay_of(streams, **chosen)
        again = replay_of(streams, **chosen).sample(256)
        low, high = replay.bounds()
        index = np.array(
            [
                number * 3 + stream
                for stream in range(3)
                for number in range(low[stream], high[stream])
                if transition_of(records[stream], number)
            ]
        )
        weights = np.ones(len(index))
        if kind == "with errors":
            replay.sample(256)  # a transition has a priority once it can be drawn
            errors = np.random.default_rng(3).gamma(0.5, 3, len(index))
            replay.update_priorities(index, -errors)
            weights = (errors + 1e-6) ** 0.6
        expected = weights / weights.sum()
        batches = [replay.sample(256) for _ in range(100)]
    drawn, probability = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("index", "probability")
    )
    counts = np.array([int((drawn == k).sum()) for k in index])
    # Those that are hardly drawn are one class.
    classes = np.where(expected * len(drawn) >= 5, np.arange(1, len(index) + 1), 0)
    observed, mean = (np.bincount(classes, w) for w in (counts, expected * len(drawn)))
    is_there = mean > 0

    assert len(drawn) == sum(counts)
    assert stats.chisquare(observed[is_there], mean[is_there]).pvalue > CHANCE
    if kind == "with errors":
        place = np.searchsorted(np.sort(index), drawn)
        found = expected[np.argsort(index)][place]
        np.testing.assert_allclose(found, probability, rtol=1e-9)
    else:
        # Final observations count, as nobody knows how many there are.
        assert probability[0] == pytest.approx(expected[0], rel=0.1)
        np.testing.assert_array_equal(batches[0]["index"], again["index"])  # the seed


def test_a_new_transition_has_the_largest_priority():
    with make_streams() as streams:
        write_episodes(streams, 0, [60])
        replay = replay_of(streams, replay="prioritized", priority_exponent=1.0)
        old = replay.sample(256)["index"]
        replay.update_priorities(old, np.full(256, 8.0))
        replay.update_priorities(old, np.full(256, 0.5))
        write_episodes(streams, 0, [60])
        batch = replay.sample(512)
        low, high = replay.bounds()
        # Errors of records that are gone change nothing.
        before = replay._tree.total
        replay.update_priorities(np.arange(low[0]), np.full(low[0], 99.0))
        after = replay._tree.total

    assert batch["index"].min() >= low[0] > 0
    assert (batch["index"] >= 55).mean() > 0.95
    # 8 for each of the new ones, five before the end of the first 60 among them.
    newest = batch["probability"][batch["index"] >= 60]
    np.testing.assert_allclose(1 / (int(high[0]) - 60 + 5), newest, rtol=0.05)
    assert before == after


@settings(max_examples=50)
@given(st.lists(st.integers(0, 130), min_size=1, max_size=12), st.integers(0, 2**31))
def test_the_tree_follows_whatever_is_written(lengths, seed):
    with make_streams(2, 60) as streams:
        replay = replay_of(streams, replay="prioritized", seed=seed)
        rng = np.random.default_rng(seed)
        records = [[], []]
        for length in lengths:
            stream = int(rng.integers(2))
            parts = [p for p in rng.multinomial(length, [0.3, 0.5, 0.2]) if p]
            records[stream] += write_episodes(streams, stream, parts)
            replay._follow()
        low, high = replay.bounds()
        expected = {
            (stream, 2 * number + stream)
            for stream in range(2)
            for number in range(low[stream], high[stream])
            if transition_of(records[stream], number)
        }
        weights = replay._tree.weights(np.arange(120))
        found = {
            (leaf // 60, int(replay._owner[leaf])) for leaf in np.flatnonzero(weights)
        }

        assert expected == found
        assert weights.sum() == pytest.approx(replay._tree.total)


# Writes as fast as it can; every field of a record follows from its number.
WRITER = """
import sys
import numpy as np
from workloads.d4pg import EnvironmentSpec, Share, StepStreams
streams = StepStreams(*eval(sys.argv[1]), int(sys.argv[2]))
write = streams.writer(0)
number = int(streams.num_written[0])
print(number, flush=True)
observation = np.empty(streams.environment.observation_shape, np.float32)
while True:
    observation[:] = number
    is_first, is_last = number % 50 == 0, number % 50 == 49
    write(observation, number % 1000, number % 7, 1.0, is_first, is_last)
    number += 1
"""


@pytest.mark.processes
def test_no_sample_mixes_two_records_while_a_process_writes():
    size, newest = 4000, 0
    with make_streams(1, size, observation_shape=(64,)) as streams:
        replay = replay_of(streams, min_size=300, discount=1)
        for until in (10 * size, 20 * size):
            written = int(streams.num_written[0])
            spec = repr((streams.share, streams.environment))
            with child(WRITER, spec, descriptor=streams.descriptor) as writer:
                start = int(writer.stdout.readline())
                end = time.monotonic() + 180
                while newest < until and time.monotonic() < end:
                    batch = replay.sample(64)
                    numbers = batch["index"]
                    after = numbers + np.minimum(5, 49 - numbers % 50)

                    assert (batch["observation"] == numbers[:, None]).all()
                    assert (batch["next_observation"] == after[:, None]).all()
                    assert (batch["action"] == numbers[:, None] % 1000).all()
                    assert batch["reward"].tolist() == [
                        sum(k % 7 for k in range(first, last))
                        for first, last in zip(numbers, after, strict=True)
                    ]
                    newest = max(newest, int(numbers.max()))
            # A killed writer loses the record that it had not yet counted.
            assert start == written
            assert newest >= until


def test_memory_has_no_name_and_is_taken_when_it_is_used():
    with make_streams(1, 60_000, **FRAMES) as streams:
        share, environment = streams.share, streams.environment
        other = StepStreams(share, environment, os.dup(streams.descriptor))
        before = os.fstat(streams.descriptor).st_blocks
        pixels = np.ones((84, 84, 3))
        other.writer(0)(pixels, 0, 2.5, 1, True, False)
        other.close()
        status = os.fstat(streams.descriptor)

        assert ([1], 2.5) == (streams.num_written.tolist(), streams.field("reward")[0])
        assert 60_000 * pixels.size > 2**30
        # Where the kernel gives huge pages, one of them.
        assert 512 * (status.st_blocks - before) <= 2**22
        assert 0 == status.st_nlink


@pytest.mark.parametrize("ratio", [0.5, 32.0])
def test_samples_per_insert_stay_near_their_ratio(ratio):
    rng = np.random.default_rng(0)
    with make_streams(2, 2000) as streams:
        replay = replay_of(streams, min_size=100, samples_per_insert=ratio)
        for _ in range(2000):
            may_write, may_sample = not streams.must_wait(), replay.can_sample(64)

            assert may_write or may_sample
            assert not may_sample or streams.num_inserted() >= 100
            if may_sample and (rng.uniform() < 0.5 or not may_write):
                replay.add_sampled(64)
            elif may_write:
                streams.num_written[rng.integers(2)] += 1
            balance = (streams.num_inserted() - 100) * ratio - replay.num_sampled
            assert abs(balance) <= max(64, 0.1 * 100 * ratio) + ratio + 64 or (
                streams.num_inserted() <= 100
            )


@pytest.mark.parametrize("ratio", [0.5, 32.0])
def test_actors_write_a_tenth_more_than_what_sampling_waits_for(ratio):
    with make_streams(2, 2000) as streams:
        replay_of(streams, min_size=100, samples_per_insert=ratio)
        while not streams.must_wait():
            streams.num_written[0] += 1
        assert 110 == streams.num_inserted()


def test_a_sample_waits_for_actors_and_counts_the_time():
    with make_streams() as streams:
        thread = threading.Thread(
            target=lambda: (time.sleep(0.1), write_episodes(streams, 0, [60]))
        )
        replay = replay_of(streams, lambda: thread.ident or thread.start(), min_size=50)
        batch = replay.sample(32)
        thread.join()

    assert 0.05 < replay.wait_sec < 60
    assert (32, 1) == batch["observation"].shape
    assert (32, 60) == (replay.num_sampled, replay.num_inserted)


def test_a_starved_replay_says_what_actors_did():
    calls = []
    with make_streams(2, num_actors=2) as streams:
        write_episodes(streams, 1, [12])
        streams.num_refused[:] = 0, 3
        streams.heartbeat[1] = time.monotonic() - 7
        replay = replay_of(streams, lambda: calls.append(1), min_size=50)
        message = (
            r"^nothing to sample after \d+ s: 12 environment steps were written, 50 "
            r"are needed, and 0 transitions were sampled \(samples_per_insert=0\); "
            r"actor 0: 0 environment steps, 0 refused, no heartbeat; "
            r"actor 1: 12 environment steps, 3 refused, last heartbeat \d+ s ago$"
        )
        with pytest.raises(StarvedReplayError, match=message):
            replay.sample(4, timeout_sec=0.05)

        assert calls
        assert 0 == len(replay_of(make_streams()))


def test_what_a_replay_cannot_do_is_refused():
    with make_streams() as streams:
        write_episodes(streams, 0, [1] * 60)
        with pytest.raises(StarvedReplayError, match="every episode ends where it beg"):
            replay_of(streams).sample(4)
        replay = replay_of(streams, replay="prioritized")
        with pytest.raises(ValueError, match="1 of 2 td_errors are not finite"):
            replay.update_priorities(np.array([1, 2]), np.array([np.nan, 1.0]))


def preset_config(preset="smoke", **options):
    return WORKLOADS["d4pg"].make_config(preset, options)


def test_workers_share_actors_and_replay():
    for num_actors, expected in ((5, [2, 3]), (2, [1, 1, 1, 1])):
        config = preset_config(num_actors=num_actors, replay_capacity=1200)
        count = len(expected)
        shares = [Share.of(config, index, count) for index in range(count)]

        assert expected == [share.num_actors for share in shares]
        assert [1200 // count // share.num_actors for share in shares] == [
            share.steps_per_stream for share in shares
        ]
        assert sum(share.min_size for share in shares) >= config.min_replay_size


class StartedError(Exception):
    """The plan was checked, and the environment would be."""


@pytest.fixture
def check(monkeypatch):
    def start(*_, **__):
        raise StartedError

    def check(num_workers=1, size=32, **options):
        planned = {"data": "cartpole:swingup", "global_batch_size": size}
        with contextlib.suppress(StartedError):
            WORKLOADS["d4pg"].check_machine(
                "smoke", options, num_workers=num_workers, **planned
            )

    monkeypatch.setattr(subprocess, "Popen", start)
    return check


BUSY = {"min_replay_size": 20, "num_actors": 1, "environments_per_actor": 2}


@pytest.mark.parametrize(
    ("given", "changes", "refused", "line"),
    [
        (
            {"replay_capacity": 90, "min_replay_size": 9, "observations": "pixels"},
            [{"replay_capacity": 92}],
            {"replay_capacity": 90},
            r"=90 keeps 45 environment steps .* fewer than the 46 .* at least 92 with",
        ),
        (
            {"replay_capacity": 210},
            [{"replay_capacity": 246}],
            {"replay_capacity": 244},
            r"=210 keeps 105 .* the 123 of min_replay_size=200 .* at least 246 with 2",
        ),
        (
            {"num_workers": 2, "replay_capacity": 150, **BUSY},
            [{"replay_capacity": 168}],
            {"replay_capacity": 164},
            r"=150 keeps 38 .* the 42 .* at least 168 with 2 .* on each of 2 workers",
        ),
        (
            {"size": 30_000},
            [{"size": 20_000}, {"size": 20_000, "samples_per_insert": 0.0}],
            {"size": 20_001},
            r"replay_capacity=20000 is less than the 30000 transitions of o",
        ),
        (
            {"size": 7777, "samples_per_insert": 0.3},
            [{"samples_per_insert": enough} for enough in (0.0, 32.0, 0.39)],
            {"samples_per_insert": 0.38},
            r"=0\.3 requires 25,923 .* at least 0\.39,",
        ),
    ],
)
def test_a_replay_that_is_too_small_is_refused(check, given, changes, refused, line):
    with pytest.raises(ValueError, match=line):
        check(**given)
    for change in changes:  # what is advised, and more
        check(**{**given, **change})
    with pytest.raises(ValueError, match="use at"):
        check(**{**given, **refused})


def test_a_replay_takes_what_is_computed():
    pixels = EnvironmentSpec(**FRAMES, action_size=1)
    config = preset_config(replay_capacity=5000, num_actors=3)
    with StepStreams(share := Share.of(config), pixels) as streams:
        replay = replay_of(streams, replay="prioritized", num_frames=3)
        shared = sum(array.nbytes for array in streams._arrays.values())
        own = replay._tree._sums.nbytes + replay._owner.nbytes
        streams.num_written[:] = 15_000  # as if full
        num_held = len(replay)

    sizes = {
        kind: share.num_bytes(pixels, is_prioritized=kind) for kind in (False, True)
    }
    records = sizes[False]
    # Besides, what actors and learner tell each other.
    assert 0 <= shared - records <= 4096
    assert own == sizes[True] - records
    assert 1.0 < records / num_held / (84 * 84 * 3) <= 1.15
    steps, around = share.steps_per_stream, 5 + 3 - 1
    held = steps - (16 + steps // 50) - around  # those near the write head are not
    assert num_held == share.num_streams * held
    # What does not fit is refused by what is needed and what is there.
    config = preset_config("paper")
    line = (
        r"=1000000 needs 21\.2 GB .*='pixels', but 16 GB are .* replay_capacity=680000,"
    )
    with pytest.raises(ValueError, match=line):
        Share.of(config).check_memory(config, pixels, 16_000_000_000)
    less = preset_config("paper", replay_capacity=680_000)
    Share.of(less).check_memory(less, pixels, 16_000_000_000)
