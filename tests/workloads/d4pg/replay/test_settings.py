"""Settings of a replay that are refused before an actor starts."""

import pytest

from workloads.d4pg.replay.make import make_replay
from workloads.d4pg.replay.replay import ReplaySettings


@pytest.mark.parametrize(
    ("steps", "changes", "message"),
    [
        (
            30,
            {},
            r"a replay of 30 environment steps per environment is too small: .* 42",
        ),
        (
            100,
            {"min_size_to_sample": 155},
            r"min_size_to_sample=155 is more than the 154 transitions that the replay",
        ),
    ],
)
def test_a_replay_that_can_never_be_sampled_is_refused(
    steps, changes, message, make_streams
):
    with make_streams(2, steps) as streams, pytest.raises(ValueError, match=message):
        make_replay(streams, ReplaySettings(**{"min_size_to_sample": 1, **changes}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("discount", 1.5),
        ("num_return_steps", 0),
        ("num_stacked_frames", 0),
        ("samples_per_insert", -1.0),
        ("error_buffer", -1.0),
    ],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"option {name}={value} must be at least"):
        ReplaySettings(**{name: value})
