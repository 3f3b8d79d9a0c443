"""D4PG with actors: real processes, real environments, a learner beside them."""

import time

import numpy as np
import pytest
import small_programs

import replicator
from workloads.d4pg import capacity, config
from workloads.d4pg.program import WORKLOAD
from workloads.d4pg.replay import StarvedReplayError

pytestmark = pytest.mark.processes
SMALL = small_programs.OPTIONS["d4pg"]


def build(backend="single", num_replicas=1, **options):
    return WORKLOAD.build(
        replicator.create(backend, num_replicas=num_replicas),
        preset="smoke",
        data="cartpole:balance",
        per_replica_batch_size=16,
        seed=1,
        options={"min_replay_size": 100, "samples_per_insert": 16.0, **options},
    )


@pytest.fixture(scope="module")
def program():
    """The program after 100 learner steps, with a window over the last 75."""
    made = build("in_graph", num_replicas=2, replay="prioritized", **SMALL)
    made.run(25)
    made.start_window()
    made.run(75)
    yield made
    made.close()


def test_acting_and_learning_keep_their_ratio(program):
    """16 transitions per environment step, after the first 100, within the buffer."""
    replay = program.experiences[0].replay
    num_owed = replay.num_sampled / 16 + 100

    assert num_owed - 20 <= replay.num_inserted <= num_owed + 40
    assert 100 * 32 <= replay.num_sampled <= 110 * 32


def test_a_window_counts_what_actors_did(program):
    """Rates, shares, and how old the weights are that actors use."""
    found = {metric.name: metric.value for metric in program.window_metrics()}
    shares = ("learner_wait_share", "actor_idle_share", "clipped_target_share")

    assert all(0.0 <= found[name] <= 1.0 for name in shares)
    assert found["environment_steps_per_sec"] > 0.0
    assert 10.0 <= found["replay_ratio"] <= 26.0
    assert 0.0 <= found["policy_lag"] < 100.0
    assert 0.0 == found["refused_environment_steps"] == found["replaced_actors"]
    steps = program.num_environment_steps()
    assert steps == pytest.approx(program.experiences[0].replay.num_inserted, abs=10)


def test_replicas_of_one_process_share_actors_and_replay(program):
    """And learn the same from the batches of each."""
    assert 1 == len(program.experiences)
    assert all(check.is_passed for check in program.sanity()), program.sanity()


def test_learning_sets_priorities(program):
    """By the divergence of each transition of the batch that was learned from."""
    seen = []
    replay = program.experiences[0].replay
    real = replay.update_priorities
    replay.update_priorities = lambda index, error: seen.append((index, error))
    program.run()
    replay.update_priorities = real

    assert [16, 16] == [len(index) for index, _ in seen]
    assert all((error >= 0.0).all() and error.any() for _, error in seen)


def test_episodes_are_scored_and_filmed(program):
    """By the present policy, without noise."""
    (metric,) = program.evaluate()

    assert ("episode_return", 2) == (metric.name, metric.num_examples)
    assert 0.0 < metric.value <= 1000.0


def test_actors_use_what_was_learned(program):
    """The weights of the last publication reach them."""
    program.run(10)
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        version = program.experiences[0].policy_version()
        if version >= program._num_steps - 10:
            break
        time.sleep(0.05)
        # Actors look for weights when they act, so somebody must learn meanwhile.
        program.run()

    assert version >= program._num_steps - 20


def test_a_starved_learner_says_what_actors_did(program, monkeypatch):
    """In one line, not in TensorFlow's pages."""

    def sample(_):
        raise StarvedReplayError("nothing to sample after 60 s: actor 0: 3 steps")

    monkeypatch.setattr(program.experiences[0].replay, "sample", sample)
    with pytest.raises(StarvedReplayError, match=r"^nothing to sample after 60 s: "):
        program.run(20)


def test_pixels_are_learned_from(tmp_path):
    """Stacked frames through actors, replay, convolutions and a checkpoint."""
    made = build(
        **SMALL,
        observations="pixels",
        num_features=8,
        num_conv_filters=4,
        action_repeat=8,
        num_actors=1,
        min_replay_size=30,
        samples_per_insert=0.0,
    )
    losses = [made.run() for _ in range(5)]
    batch = next(made.batches())
    made.save(str(tmp_path))
    made.close()

    assert all(np.isfinite(losses))
    assert (16, 84, 84, 9) == batch["observation"][0].shape
    assert batch["observation"][0].numpy().std() > 1.0
    # Nothing holds the memory but arrays, which go with the program.
    (experience,) = made.experiences
    assert (-1, -1) == (experience._streams.descriptor, experience._weights.descriptor)


@pytest.mark.parametrize(
    ("num_pipelines", "num_actors", "expected"),
    [(1, 5, [5]), (2, 5, [2, 3]), (4, 2, [1, 1, 1, 1]), (3, 9, [3, 3, 3])],
)
def test_workers_share_actors_and_replay(num_pipelines, num_actors, expected):
    """Every worker has an actor, though there may be fewer than workers."""
    settings = config.make_config(
        "smoke", {"num_actors": num_actors, "replay_capacity": 1200}
    )
    shares = [
        capacity.share(settings, index, num_pipelines) for index in range(num_pipelines)
    ]

    assert expected == [share.num_actors for share in shares]
    assert {1200 // num_pipelines} == {share.capacity for share in shares}
    assert sum(share.min_size for share in shares) >= settings.min_replay_size
