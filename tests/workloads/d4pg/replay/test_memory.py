"""Memory of a full replay, held to what is allocated; and what this machine has."""

import dataclasses
import pathlib
import re

import psutil
import pytest

from workloads.d4pg.config import PRESETS, make_config
from workloads.d4pg.environment.control import EnvironmentSpec
from workloads.d4pg.replay import memory
from workloads.d4pg.replay.prioritized import PrioritizedReplay
from workloads.d4pg.replay.replay import ReplaySettings
from workloads.d4pg.replay.streams import StepStreams

README = pathlib.Path(memory.__file__).parents[1] / "README.md"
CARTPOLE = EnvironmentSpec(
    observation_shape=(5,), observation_dtype="float32", action_size=1
)
FRAMES = EnvironmentSpec(
    observation_shape=(84, 84, 3), observation_dtype="uint8", action_size=1
)
# What actors and learner tell each other, beside the records.
MOST_OTHER_BYTES = 4096


def streams_of(config, environment=CARTPOLE):
    return memory.streams_spec(
        config,
        environment,
        num_actors=config.num_actors,
        capacity=config.replay_capacity,
    )


@pytest.mark.parametrize(
    ("environment", "capacity"), [(CARTPOLE, 1000), (CARTPOLE, 4097), (FRAMES, 500)]
)
def test_a_replay_takes_what_is_computed(environment, capacity):
    """Bytes of its arrays; by priority, those of the tree and the leaves, too."""
    config = make_config("smoke", {"replay_capacity": capacity, "num_actors": 3})
    spec = streams_of(config, environment)
    with StepStreams(spec) as streams:
        replay = PrioritizedReplay(streams, ReplaySettings(min_size_to_sample=1))
        shared = sum(array.nbytes for array in streams._shared._arrays.values())
        own = replay._tree._sums.nbytes + replay._owner.nbytes

    records = memory.replay_bytes(spec, is_prioritized=False)
    assert 0 <= shared - records <= MOST_OTHER_BYTES
    assert own == memory.replay_bytes(spec, is_prioritized=True) - records


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
        size = memory.replay_bytes(spec, is_prioritized=config.replay == "prioritized")
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
        memory.check(config, spec, available=16_000_000_000)
    less = make_config("paper", {"replay_capacity": 680_000})
    memory.check(less, streams_of(less, FRAMES), available=16_000_000_000)
    memory.check(config, spec, available=10**11)
    with pytest.raises(
        ValueError, match=r"0 MB are available .* replay_capacity=0, or"
    ):
        memory.check(config, spec, available=0)


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
    write_group(top / "job/step", memory._FILES_V2, "max", 50, 0)
    write_group(top / "job", memory._FILES_V2, 10_000, 4000, 1500)

    assert 7500 == memory.available_bytes(tmp_path)
    write_group(top / "job/step", memory._FILES_V2, 3000, 3500, 0)
    assert 0 == memory.available_bytes(tmp_path)


def test_a_limit_of_version_1_counts(tmp_path):
    """Mounted at the top, as in a container; the others say nothing of memory."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/x\n")
    folder = tmp_path / "sys/fs/cgroup/memory"
    write_group(folder, memory._FILES_V1, 9000, 2000, 100)

    assert 7100 == memory.available_bytes(tmp_path)


def test_without_a_limit_the_machine_s_memory_counts(tmp_path):
    """As the kernel estimates it, not what is free."""
    before = psutil.virtual_memory().total

    assert 0 < memory.available_bytes(tmp_path) <= before
