"""How much a replay holds, held to the replay itself; and what is too small."""

import re

import pytest

from workloads.d4pg.config import make_config
from workloads.d4pg.replay import capacity
from workloads.d4pg.replay.make import make_replay
from workloads.d4pg.replay.replay import ReplaySettings
from workloads.d4pg.replay.streams import StepStreams, StreamsSpec


@pytest.mark.parametrize("steps", [60, 100, 1000])
@pytest.mark.parametrize(("num_return_steps", "num_frames"), [(1, 1), (5, 1), (3, 3)])
def test_as_many_transitions_are_held_as_are_counted(
    steps, num_return_steps, num_frames
):
    """By a replay whose rings have come round."""
    spec = StreamsSpec(
        num_streams=2,
        steps_per_stream=steps,
        observation_shape=(2, 2, 3) if num_frames > 1 else (1,),
        observation_dtype="uint8" if num_frames > 1 else "float32",
        action_size=1,
    )
    with StepStreams(spec) as streams:
        settings = ReplaySettings(
            num_return_steps=num_return_steps,
            num_stacked_frames=num_frames,
            min_size_to_sample=1,
        )
        replay = make_replay(streams, settings)
        streams.num_written[:] = 10 * steps
        counted = capacity.num_transitions(
            steps, num_return_steps=num_return_steps, num_stacked_frames=num_frames
        )

        assert len(replay) == 2 * counted


@pytest.mark.parametrize("num_needed", [1, 30, 1000, 20_000])
def test_the_least_ring_holds_what_is_needed_and_the_next_smaller_does_not(num_needed):
    """At least half of a ring can be sampled."""
    around = {"num_return_steps": 5, "num_stacked_frames": 3}
    least = capacity.least_steps_per_stream(num_needed, **around)

    def suffices(size):
        found = capacity.num_transitions(size, **around)
        return found >= num_needed and 2 * found >= size

    assert suffices(least)
    assert not suffices(least - 1)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"replay_capacity": 40, "min_replay_size": 10},
            (
                "option replay_capacity=40 keeps 20 environment steps of each "
                "environment, fewer than the 42 that transitions of num_return_steps=5 "
                "need besides those being written: use at least 84 with 2 "
                "environments, or fewer of them"
            ),
        ),
        (
            {"replay_capacity": 90, "min_replay_size": 9, "observations": "pixels"},
            (
                "option replay_capacity=90 keeps 45 environment steps of each "
                "environment, fewer than the 46 that transitions of num_return_steps=5 "
                "need besides those being written: use at least 92 with 2 "
                "environments, or fewer of them"
            ),
        ),
        (
            {"replay_capacity": 210},
            (
                "option min_replay_size=200 is more than the 164 transitions that "
                "replay_capacity=210 holds besides those being written: use at most "
                "that, or a replay_capacity of at least 246"
            ),
        ),
    ],
)
def test_a_replay_that_is_too_small_is_refused(options, line):
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        make_config("smoke", options)
    numbers = re.findall(r"at least (\d+)", line)
    make_config("smoke", options | {"replay_capacity": int(numbers[-1])})
    with pytest.raises(ValueError, match="use at"):
        make_config("smoke", options | {"replay_capacity": int(numbers[-1]) - 2})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"replay_capacity": 150, "min_replay_size": 20},
            (
                "option replay_capacity=150 keeps 38 environment steps of each "
                "environment, fewer than the 42 that transitions of num_return_steps=5 "
                "need besides those being written: use at least 168 with 2 "
                "environments on each of 2 workers, or fewer of them"
            ),
        ),
        (
            {"replay_capacity": 200, "min_replay_size": 120},
            (
                "option min_replay_size=120 is more than the 112 transitions that "
                "replay_capacity=200 holds besides those being written on each of 2 "
                "workers: use at most that, or a replay_capacity of at least 208"
            ),
        ),
    ],
)
def test_a_replay_that_is_too_small_for_its_workers_is_refused(options, line):
    """Though it would do for one, with a capacity that would do for all."""
    alone = {"num_actors": 1, "environments_per_actor": 2}
    config = make_config("smoke", options | alone)
    least = int(re.findall(r"at least (\d+)", line)[-1])

    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        capacity.check_rings(config, num_pipelines=2)
    enough = make_config("smoke", options | alone | {"replay_capacity": least})
    capacity.check_rings(enough, num_pipelines=2)
    fewer = make_config("smoke", options | alone | {"replay_capacity": least - 4})
    with pytest.raises(ValueError, match="use at"):
        capacity.check_rings(fewer, num_pipelines=2)


@pytest.mark.parametrize(
    ("options", "global_batch_size", "line"),
    [
        (
            {},
            30_000,
            (
                "option replay_capacity=20000 is less than the 30000 transitions of "
                "one learner step: use at least as many, or fewer per replica "
                "(--per-replica-batch-size)"
            ),
        ),
        (
            {"samples_per_insert": 1e-6},
            32,
            (
                "option samples_per_insert=1e-06 requires 32,000,000 environment steps "
                "before each learner step of 32 transitions, but replay_capacity=20000 "
                "stores fewer: use at least 0.0016, or 0 for no limit"
            ),
        ),
        (
            {"samples_per_insert": 0.3, "replay_capacity": 20_300},
            7777,
            (
                "option samples_per_insert=0.3 requires 25,923 environment steps "
                "before each learner step of 7777 transitions, but "
                "replay_capacity=20300 stores fewer: use at least 0.39, or 0 for no "
                "limit"
            ),
        ),
    ],
)
def test_a_replay_that_cannot_feed_the_learner_is_refused(
    options, global_batch_size, line
):
    config = make_config("smoke", options)
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        capacity.check_learning(config, global_batch_size=global_batch_size)
    for value in (0.0, 32.0, *map(float, re.findall(r"at least ([\d.]+),", line))):
        config = make_config("smoke", options | {"samples_per_insert": value})
        capacity.check_learning(config, global_batch_size=min(global_batch_size, 20000))
