"""Draws against their distribution, the tree behind them, and what transitions hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workloads.d4pg.replay import (
    ReplaySettings,
    SumTree,
    TransitionReader,
    make_replay,
)

# Least probability of a chi-square statistic that chance is believed of.
CHANCE = 1e-3


@pytest.mark.parametrize("is_prioritized", [False, True])
def test_every_transition_is_equally_likely_without_errors(
    is_prioritized, make_streams, write_episodes, transition_of
):
    """Chi-square over all that can be drawn, in streams of unequal lengths."""
    chosen = ReplaySettings(min_size_to_sample=1, is_prioritized=is_prioritized, seed=1)
    with make_streams(3) as streams:
        records = [
            write_episodes(streams, 0, [20, 7, 30, 9]),
            write_episodes(streams, 1, [12, 40]),
            write_episodes(streams, 2, [50] * 4),
        ]
        replay = make_replay(streams, chosen)
        low, high = replay._reader.bounds()
        allowed = [
            number * 3 + stream
            for stream in range(3)
            for number in range(low[stream], high[stream])
            if transition_of(records[stream], number, 5, 0.99)
        ]
        batches = [replay.sample(256) for _ in range(100)]
        drawn = np.concatenate([batch["index"] for batch in batches])
        counts = [int((drawn == index).sum()) for index in allowed]

        assert len(drawn) == sum(counts)
        assert stats.chisquare(counts).pvalue > CHANCE
        # Final observations count, as nobody knows how many there are.
        assert batches[0]["probability"][0] == pytest.approx(1 / len(allowed), rel=0.1)


def test_priorities_are_what_transitions_are_drawn_by(make_streams, write_episodes):
    """Chi-square against |error| ** alpha; the probabilities add up to 1."""
    chosen = ReplaySettings(min_size_to_sample=1, is_prioritized=True, seed=2)
    with make_streams(2) as streams:
        for stream in range(2):
            write_episodes(streams, stream, [30, 40])
        replay = make_replay(streams, chosen)
        index = np.unique(np.concatenate([replay.sample(256)["index"]] * 8))
        for _ in range(20):
            index = np.union1d(index, replay.sample(256)["index"])
        errors = np.random.default_rng(3).gamma(0.5, 3, len(index))
        replay.update_priorities(index, -errors)
        weights = (errors + 1e-6) ** 0.6
        expected = weights / weights.sum()
        batches = [replay.sample(256) for _ in range(100)]
        drawn = np.concatenate([batch["index"] for batch in batches])
        probability = np.concatenate([batch["probability"] for batch in batches])
        counts = np.array([int((drawn == k).sum()) for k in index])
        place = np.searchsorted(index, drawn)

        np.testing.assert_allclose(expected[place], probability, rtol=1e-9)
        is_common = expected * len(drawn) >= 5
        rest = [~is_common]
        assert (
            stats.chisquare(
                [*counts[is_common], *(counts[r].sum() for r in rest)],
                [*expected[is_common], *(expected[r].sum() for r in rest)]
                / expected.sum()
                * len(drawn),
            ).pvalue
            > CHANCE
        )


def test_a_new_transition_has_the_largest_priority(make_streams, write_episodes):
    """It is drawn soon, and what was overwritten is never drawn again."""
    chosen = ReplaySettings(
        min_size_to_sample=1, is_prioritized=True, priority_exponent=1.0
    )
    with make_streams() as streams:
        write_episodes(streams, 0, [60])
        replay = make_replay(streams, chosen)
        old = replay.sample(256)["index"]
        replay.update_priorities(old, np.full(256, 8.0))
        replay.update_priorities(old, np.full(256, 1e-3))
        write_episodes(streams, 0, [60])
        batch = replay.sample(512)
        low, high = replay._reader.bounds()
        # 8 for each of the new ones, and almost nothing for the old ones.
        num_new = int(high[0]) - 60 + (60 - (60 - 5))

        assert batch["index"].min() >= low[0] > 0
        assert (batch["index"] >= 55).mean() > 0.95
        newest = batch["probability"][batch["index"] >= 60]
        np.testing.assert_allclose(1 / num_new, newest, rtol=0.05)
        # Errors of records that are gone change nothing.
        before = replay._tree.total
        replay.update_priorities(np.arange(low[0]), np.full(low[0], 99.0))
        assert before == replay._tree.total


@settings(max_examples=50)
@given(st.lists(st.integers(0, 130), min_size=1, max_size=12), st.integers(0, 2**31))
def test_the_tree_follows_whatever_is_written(
    make_streams, write_episodes, transition_of, lengths, seed
):
    """Its leaves are always the transitions that are there, and no others."""
    chosen = ReplaySettings(min_size_to_sample=1, is_prioritized=True, seed=seed)
    with make_streams(2, 60) as streams:
        replay = make_replay(streams, chosen)
        rng = np.random.default_rng(seed)
        records = [[], []]
        for length in lengths:
            stream = int(rng.integers(2))
            parts = [p for p in rng.multinomial(length, [0.3, 0.5, 0.2]) if p]
            records[stream] += write_episodes(streams, stream, parts)
            replay._follow()
        low, high = replay._reader.bounds()
        expected = {
            (stream, number)
            for stream in range(2)
            for number in range(low[stream], high[stream])
            if transition_of(records[stream], number, 5, 0.99)
        }
        weights = replay._tree.weights(np.arange(120))
        found = {
            (leaf // 60, int(replay._owner[leaf])) for leaf in np.flatnonzero(weights)
        }

        assert expected == found
        assert weights.sum() == pytest.approx(replay._tree.total)


@pytest.mark.parametrize(
    ("index", "errors", "message"),
    [
        ([1, 2], [0.1], r"shape \(2,\) and td_errors \(1,\): both must be vectors"),
        ([1, 2], [np.nan, 1.0], "1 of 2 td_errors are not finite: a priority must"),
    ],
)
def test_errors_that_cannot_be_priorities_are_refused(
    index, errors, message, make_streams, write_episodes
):
    """A NaN would poison every sum above it."""
    with make_streams() as streams:
        write_episodes(streams, 0, [60])
        replay = make_replay(
            streams, ReplaySettings(min_size_to_sample=1, is_prioritized=True)
        )
        with pytest.raises(ValueError, match=message):
            replay.update_priorities(np.array(index), np.array(errors))


@pytest.mark.parametrize("is_prioritized", [False, True])
def test_the_same_seed_draws_the_same(is_prioritized, make_streams, write_episodes):
    """Of the same records."""
    drawn = []
    for _ in range(2):
        with make_streams() as streams:
            write_episodes(streams, 0, [60])
            replay = make_replay(
                streams,
                ReplaySettings(
                    min_size_to_sample=1, is_prioritized=is_prioritized, seed=5
                ),
            )
            drawn.append(replay.sample(16)["index"].tolist())

    assert drawn[0] == drawn[1]


def test_a_tree_finds_the_leaf_that_covers_a_position():
    """Against the cumulative sum, with leaves of weight zero at its borders."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 64, 100):
        tree = SumTree(size)
        weights = np.where(rng.uniform(size=size) < 0.4, 0.0, rng.uniform(size=size))
        weights[size // 2] = 1.0
        tree.set(np.arange(size), weights)
        positions = rng.uniform(0, tree.total, 500)
        expected = np.searchsorted(weights.cumsum(), positions, side="right")

        np.testing.assert_array_equal(expected, tree.find(positions))
        top = tree.find(np.array([0.0, tree.total, np.nextafter(tree.total, 9e9)]))
        assert (weights[top] > 0).all()


def test_a_tree_does_not_drift():
    """After a hundred thousand changes the root is still the sum of the leaves."""
    rng = np.random.default_rng(0)
    tree = SumTree(1000)
    for _ in range(200):
        tree.set(rng.integers(1000, size=500), rng.gamma(0.1, 1e6, 500))
    tree.set(np.arange(1000), 0.0)

    assert 0.0 == tree.total


def stack_of(records, number, num_frames):
    values = []
    for _ in range(num_frames):
        values.append(records[number]["observation"])
        if not records[number]["is_first"]:
            number -= 1
    return values[::-1]


episodes = st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=14)


@settings(max_examples=150)
@given(episodes, st.integers(1, 6), st.sampled_from([1.0, 0.99, 0.5]), st.data())
def test_transitions_are_those_of_the_definition(
    make_streams, write_episodes, transition_of, pattern, n, discount, data
):
    """Any lengths, broken episodes, discounts, and rings that come round."""
    num_frames = data.draw(st.sampled_from([1, 3]))
    changes = (
        {}
        if num_frames == 1
        else {"observation_shape": (2, 2, 3), "observation_dtype": "uint8"}
    )
    with make_streams(2, 60, **changes) as streams:
        reader = TransitionReader(
            streams,
            ReplaySettings(
                num_return_steps=n, discount=discount, num_stacked_frames=num_frames
            ),
        )
        lengths = [length for length, _ in pattern]
        broken = {place for place, (_, is_broken) in enumerate(pattern) if is_broken}
        write_episodes(streams, 0, [3])
        records = write_episodes(streams, 1, lengths, is_broken=broken)
        low, high = (int(bound[1]) for bound in reader.bounds())
        numbers = np.arange(low, high)
        found = reader.read(np.ones_like(numbers), numbers)
        expected = [transition_of(records, k, n, discount) for k in numbers]

        # What cannot be overwritten soon is there, as far as its n steps are.
        oldest = len(records) - 60 + 17
        assert (oldest + num_frames - 1 if oldest > 0 else 0) == low
        assert max(low, len(records) - n) == high
        assert [e is not None for e in expected] == found.is_valid.tolist()
        ends = numbers + found.num_steps
        for row in np.flatnonzero(found.is_valid):
            end, total, factor = expected[row]
            one = slice(row, row + 1)

            assert end == ends[row]
            assert total == pytest.approx(found.reward[row], rel=1e-5, abs=1e-5)
            assert factor == pytest.approx(found.discount[row], rel=1e-6)
            for k in (numbers[one], ends[one]):
                values = reader.observations(np.ones_like(k), k)[0].reshape(-1)
                stack = stack_of(records, int(k[0]), num_frames)
                if num_frames == 1:
                    assert stack == values.tolist()
                else:
                    stack = [v % 251 for v in stack for _ in range(3)] * 4
                    assert stack == values.tolist()
            action = reader.actions(np.ones(1, int), numbers[one])
            assert np.float32(records[numbers[row]]["action"]) == action[0, 0]


def test_the_convention_is_that_of_acme(make_streams):
    """R and D by hand: discounts of the environment within R, g once less in D."""
    with make_streams() as streams:
        writer = streams.writer(0)
        for k, (reward, discount) in enumerate([(1, 0.5), (2, 1), (4, 0), (0, 0)]):
            writer.append(k, 0, reward, discount, is_first=k == 0, is_last=k == 3)
        reader = TransitionReader(
            streams, ReplaySettings(num_return_steps=3, discount=0.9)
        )
        found = reader.read(np.zeros(2, int), np.array([0, 1]))

        # 1 + 0.9 * 0.5 * 2 + 0.81 * 0.5 * 1 * 4, and 2 + 0.9 * 4.
        np.testing.assert_allclose([3.52, 5.6], found.reward, rtol=1e-6)
        assert [0.0, 0.0] == found.discount.tolist()
        assert [3, 2] == found.num_steps.tolist()
