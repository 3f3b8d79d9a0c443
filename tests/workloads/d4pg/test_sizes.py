"""How much a replay holds and takes, held to the replay itself; and what is refused."""

import dataclasses
import pathlib
import re

import psutil
import pytest

from workloads.d4pg import capacity as capacity_lib
from workloads.d4pg.config import PRESETS, make_config
from workloads.d4pg.control import EnvironmentSpec
from workloads.d4pg.replay import PrioritizedReplay, ReplaySettings, make_replay
from workloads.d4pg.streams import StepStreams, StreamsSpec


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
        around = num_return_steps + num_frames - 1
        counted = capacity_lib.num_transitions(steps, num_around=around)

        assert len(replay) == 2 * counted


@pytest.mark.parametrize("num_needed", [1, 30, 1000, 20_000])
def test_the_least_ring_holds_what_is_needed_and_the_next_smaller_does_not(num_needed):
    """At least half of a ring can be sampled."""
    least = capacity_lib.least_steps_per_stream(num_needed, num_around=7)

    def suffices(size):
        found = capacity_lib.num_transitions(size, num_around=7)
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
        capacity_lib.check_rings(config, num_pipelines=2)
    enough = make_config("smoke", options | alone | {"replay_capacity": least})
    capacity_lib.check_rings(enough, num_pipelines=2)
    fewer = make_config("smoke", options | alone | {"replay_capacity": least - 4})
    with pytest.raises(ValueError, match="use at"):
        capacity_lib.check_rings(fewer, num_pipelines=2)


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
        capacity_lib.check_learning(config, global_batch_size=global_batch_size)
    for value in (0.0, 32.0, *map(float, re.findall(r"at least ([\d.]+),", line))):
        config = make_config("smoke", options | {"samples_per_insert": value})
        capacity_lib.check_learning(
            config, global_batch_size=min(global_batch_size, 20000)
        )


README = pathlib.Path(capacity_lib.__file__).parent / "README.md"
CARTPOLE = EnvironmentSpec(
    observation_shape=(5,), observation_dtype="float32", action_size=1
)
FRAMES = EnvironmentSpec(
    observation_shape=(84, 84, 3), observation_dtype="uint8", action_size=1
)
# What actors and learner tell each other, beside the records.
MOST_OTHER_BYTES = 4096


def streams_of(config, environment=CARTPOLE):
    whole = capacity_lib.share(config, 0, 1)
    return capacity_lib.streams_spec(config, environment, whole)


@pytest.mark.parametrize(
    ("environment", "capacity"), [(CARTPOLE, 1000), (CARTPOLE, 4097), (FRAMES, 500)]
)
def test_a_replay_takes_what_is_computed(environment, capacity):
    """Bytes of its arrays; by priority, those of the tree and the leaves, too."""
    config = make_config("smoke", {"replay_capacity": capacity, "num_actors": 3})
    spec = streams_of(config, environment)
    with StepStreams(spec) as streams:
        replay = PrioritizedReplay(streams, ReplaySettings(min_size_to_sample=1))
        shared = sum(array.nbytes for array in streams._arrays.values())
        own = replay._tree._sums.nbytes + replay._owner.nbytes

    records = capacity_lib.replay_bytes(spec, is_prioritized=False)
    assert 0 <= shared - records <= MOST_OTHER_BYTES
    assert own == capacity_lib.replay_bytes(spec, is_prioritized=True) - records


def test_the_readme_has_the_memory_of_every_preset():
    """Computed, for the environments that the presets name."""
    walker = dataclasses.replace(FRAMES, action_size=6)
    environments = {
        "smoke": CARTPOLE,
        "laptop": CARTPOLE,
        "laptop_pixels": FRAMES,
        "gpu": FRAMES,
    }
    found = []
    for name, config in PRESETS.items():
        spec = streams_of(config, environments.get(name, walker))
        size = capacity_lib.replay_bytes(
            spec, is_prioritized=config.replay == "prioritized"
        )
        found.append(f"{size / 1e9:.3g} GB" if size > 1e9 else f"{size / 1e6:.3g} MB")

    (row,) = re.findall(
        r"^\| memory of the replay \| (.*) \|$", README.read_text(), re.MULTILINE
    )
    assert found == [cell.strip() for cell in row.split("|")]


def test_a_replay_that_does_not_fit_is_refused():
    """In one line: what is needed, what is there, and the option to lower."""
    config = make_config("paper", {})
    spec = streams_of(config, FRAMES)
    line = (
        "option replay_capacity=1000000 needs 21.2 GB of memory for observations="
        "'pixels', but 16 GB are available here: use less, such as "
        "replay_capacity=680000, or another machine"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        capacity_lib.check_memory(config, spec, available=16_000_000_000)
    less = make_config("paper", {"replay_capacity": 680_000})
    capacity_lib.check_memory(less, streams_of(less, FRAMES), available=16_000_000_000)
    capacity_lib.check_memory(config, spec, available=10**11)
    with pytest.raises(
        ValueError, match=r"0 MB are available .* replay_capacity=0, or"
    ):
        capacity_lib.check_memory(config, spec, available=0)


def write_group(folder, names, limit, usage, droppable):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, usage), strict=False):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {droppable}\n")


def test_the_tightest_limit_of_a_container_counts(tmp_path):
    """Version 2: of this group and those above it; what can be dropped is free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    top = tmp_path / "sys/fs/cgroup"
    write_group(top / "job/step", capacity_lib._GROUP_FILES[2], "max", 50, 0)
    write_group(top / "job", capacity_lib._GROUP_FILES[2], 10_000, 4000, 1500)

    assert 7500 == capacity_lib.available_bytes(tmp_path)
    write_group(top / "job/step", capacity_lib._GROUP_FILES[2], 3000, 3500, 0)
    assert 0 == capacity_lib.available_bytes(tmp_path)


def test_a_limit_of_version_1_counts(tmp_path):
    """Mounted at the top, as in a container; the others say nothing of memory."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/x\n")
    folder = tmp_path / "sys/fs/cgroup/memory"
    write_group(folder, capacity_lib._GROUP_FILES[1], 9000, 2000, 100)

    assert 7100 == capacity_lib.available_bytes(tmp_path)


def test_without_a_limit_the_machine_s_memory_counts(tmp_path):
    """As the kernel estimates it, not what is free."""
    before = psutil.virtual_memory().total

    assert 0 < capacity_lib.available_bytes(tmp_path) <= before
