"""Transitions against a plain loop over the records."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.d4pg.replay.transitions import TransitionReader


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
            num_return_steps=n,
            discount=discount,
            num_stacked_frames=num_frames,
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
        reader = TransitionReader(streams, num_return_steps=3, discount=0.9)
        found = reader.read(np.zeros(2, int), np.array([0, 1]))

        # 1 + 0.9 * 0.5 * 2 + 0.81 * 0.5 * 1 * 4, and 2 + 0.9 * 4.
        np.testing.assert_allclose([3.52, 5.6], found.reward, rtol=1e-6)
        assert [0.0, 0.0] == found.discount.tolist()
        assert [3, 2] == found.num_steps.tolist()
