"""Draws against their distribution, and the tree of priorities behind them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workloads.d4pg.replay.make import make_replay
from workloads.d4pg.replay.replay import ReplaySettings

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
