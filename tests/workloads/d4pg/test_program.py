"""D4PG as it is measured: actors beside a learner, seeds, faults, figures."""

import collections
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import small_programs
import tensorflow as tf

import replicator
from workloads.d4pg import StarvedReplayError

# Of steps 5, 10, 15 and 20.
GOLDEN_LOSSES = (3.898927, 3.797670, 3.641502, 3.191233)
SMALL_FRAMES = {"observations": "pixels", "num_features": 8, "num_conv_filters": 4}


def build(*backend, count=8, **options):
    return small_programs.build(
        "d4pg", *backend, per_replica_batch_size=count, **options
    )


def build_with_actors(*backend, **options):
    options = {"min_replay_size": 100, "samples_per_insert": 16.0, **options}
    return build(*backend, count=16, data="cartpole:balance", **options)


@pytest.fixture(scope="module")
def program():
    made = build_with_actors("in_graph", 2, replay="prioritized")
    made.run(25)
    made.start_window()
    made.run(75)
    yield made
    made.close()


@pytest.mark.processes
def test_acting_and_learning_keep_their_ratio_and_are_counted(program):
    (experience,) = program.training.experiences  # which both replicas share
    replay = experience.replay
    found = {metric.name: metric.value for metric in program.window_metrics()}
    shares = ("learner_wait_share", "actor_idle_share", "clipped_target_share")
    num_owed = replay.num_sampled / 16 + 100

    assert num_owed - 20 <= replay.num_inserted <= num_owed + 40
    assert 100 * 32 <= replay.num_sampled <= 110 * 32
    assert all(0.0 <= found[name] <= 1.0 for name in shares)
    assert found["environment_steps_per_sec"] > 0.0
    assert 10.0 <= found["replay_ratio"] <= 26.0
    assert 0.0 <= found["policy_lag"] < 100.0
    assert 0.0 == found["refused_environment_steps"] == found["replaced_actors"]
    steps = program.num_environment_steps()
    assert steps == pytest.approx(replay.num_inserted, abs=10)
    small_programs.sane(program)


@pytest.mark.processes
def test_learning_sets_priorities(program, monkeypatch):
    seen = []
    replay = program.training.experiences[0].replay
    monkeypatch.setattr(replay, "update_priorities", lambda *found: seen.append(found))
    program.run()

    assert [16, 16] == [len(index) for index, _ in seen]
    assert seen[0][0].tolist() != seen[1][0].tolist()
    assert all((error >= 0.0).all() and error.any() for _, error in seen)


@pytest.mark.processes
def test_actors_use_what_was_learned_and_episodes_are_scored(program):
    (metric,) = program.evaluate()
    program.run(10)
    deadline, version = time.monotonic() + 60.0, -1
    while version < program._num_steps - 10 and time.monotonic() < deadline:
        # Actors look for weights when they act, so somebody must learn meanwhile.
        program.run()
        version = program.training.experiences[0].policy_version()

    assert ("episode_return", 2) == (metric.name, metric.num_examples)
    assert 0.0 < metric.value <= 1000.0
    assert version >= program._num_steps - 20


@pytest.mark.processes
def test_a_starved_learner_says_what_actors_did(program, monkeypatch):
    def sample(_):
        raise StarvedReplayError("nothing to sample after 60 s: actor 0: 3 steps")

    monkeypatch.setattr(program.training.experiences[0].replay, "sample", sample)
    with pytest.raises(StarvedReplayError, match=r"^nothing to sample after 60 s: "):
        program.run(20)


@pytest.mark.processes
def test_pixels_are_learned_from(tmp_path):
    made = build_with_actors(
        **SMALL_FRAMES, action_repeat=8, num_actors=1, min_replay_size=30
    )
    losses = [made.run() for _ in range(5)]
    batch = next(made.batches())
    made.save(str(tmp_path))
    idle_sec = made.training.experiences[0].counters()["idle_sec"]
    made.close()

    assert all(np.isfinite(losses))
    assert (16, 84, 84, 9) == batch["observation"][0].shape
    assert batch["observation"][0].numpy().std() > 1.0
    assert 0.0 < idle_sec  # frames wait for the learner
    # Nothing holds the memory but arrays, which go with the program.
    (experience,) = made.training.experiences
    assert (-1, -1) == (experience._streams.descriptor, experience.weights.descriptor)


@pytest.fixture(scope="module")
def idle():
    return build(count=256)


def test_real_data_need_learners_that_run_the_program(idle, monkeypatch):
    class TwoWorkers(replicator.ParameterServerReplicator):
        num_programs, num_workers = 1, 2

        def __init__(self):
            """Starts nothing."""

    monkeypatch.setattr(idle, "_repl", TwoWorkers())
    monkeypatch.setattr(idle.training, "data", "reacher:easy")
    with pytest.raises(ValueError, match=r"'reacher:easy' needs actors .* synthetic"):
        idle._input_mode()


def test_the_learner_learns_what_there_is_to_learn():
    made = build(
        count=64, critic_sizes="32,32", discount=0.0, critic_learning_rate=3e-3
    )
    losses = [made.run() for _ in range(20)]
    last = made.run(60)

    assert math.log(51) == pytest.approx(losses[0], rel=0.01)
    assert list(GOLDEN_LOSSES) == pytest.approx(losses[4::5], rel=1e-3)
    assert last < math.log(2)
    small_programs.sane(made)


def test_atoms_that_cannot_hold_the_returns_are_reported():
    made = build(lowest_return=-1.0, highest_return=1.0)
    made.run()
    made.start_window()
    made.run(5)
    line = (
        r"^\d\d% of the target distributions' probability lies outside the atoms, from "
        r"-1 to 1: set options lowest_return and highest_return to the range of "
        r"discounted returns$"
    )
    with pytest.warns(UserWarning, match=line):
        found = {metric.name: metric.value for metric in made.window_metrics()}

    assert {"learner_steps_per_sec", "transitions_per_sec", "clipped_target_share"} == (
        set(found)
    )
    assert 0.5 < found["clipped_target_share"] <= 1.0
    assert (None, ()) == (made.num_environment_steps(), made.evaluate())


def test_a_loss_that_is_not_finite_is_reported(tmp_path):
    made = build()
    made.run(2)
    assert made.save(str(tmp_path)) is not None
    # The critic's loss is sound until targets are copied.
    for network in (made.training.policy, made.training.critic):
        for variable in network.trainable_variables:
            variable.assign(tf.fill(variable.shape, math.nan))
        if network is made.training.policy:
            line = r"^the policy's actions have no finite value in learner step 2: low"
            with pytest.raises(FloatingPointError, match=line):
                made.run()
            assert math.isfinite(made._last_loss)

    assert math.isnan(made.run())
    assert all(math.isnan(loss) for loss in made.losses_of_replicas())
    assert not made.sanity()[0].is_passed
    with pytest.raises(FloatingPointError, match=r"is not finite after"):
        made.save(str(tmp_path))


def test_a_checkpoint_holds_networks_targets_and_optimizers(tmp_path):
    made, other = (build(seed=seed) for seed in (1, 2))
    made.run(3)
    made.save(str(tmp_path))
    manager = other._repl.make_checkpoint_manager(
        str(tmp_path), **other.training.trackables
    )
    manager.restore()
    other.training.num_steps = made.training.num_steps
    batch = next(iter(made._inputs.pipelines[0]))
    for each in (made, other):
        inputs = each._repl.make_input_iterator(
            lambda _: tf.data.Dataset.from_tensors(batch).repeat()
        )
        for _ in range(2):
            each.training.learn(inputs)

    np.testing.assert_equal(
        made.training.policy_weights(), other.training.policy_weights()
    )


def figures(made, *reads, pauses=(), num_processes=1):
    """Of what a program reads of its clock, its steps and its actors."""
    rows = [
        collections.Counter(
            {**counters, "window_sec": time_sec, "num_learner_steps": num_steps}
        )
        for time_sec, num_steps, counters in reads
    ]
    made._now = iter(rows).__next__
    made._gather = lambda of_one: [of_one] * num_processes
    silent = dict.fromkeys(("pause", "resume", "close"), lambda: None)
    made.training.experiences = [SimpleNamespace(**silent)]
    made.start_window()
    made._clipped.append([0.04])
    made._lags.append(10.0)
    for call in pauses:
        getattr(made, call)()
    return {metric.name: metric.value for metric in made.window_metrics()}


def test_differences_are_counted_and_processes_added_up(idle):
    before = {"num_environment_steps": 1000, "num_episodes": 1, "num_sampled": 50}
    after = {
        "num_environment_steps": 1600,
        "num_episodes": 3,
        "num_sampled": 19_250,
        "wait_sec": 2.5,
        "idle_sec": 4.0,
        "elapsed_sec": 20.0,
        "num_refused": 1,
        "num_restarts": 2,
    }
    reads = (10.0, 100, before), (20.0, 300, after)
    found = figures(idle, *reads, num_processes=2)

    assert {
        "learner_steps_per_sec": 20.0,
        "transitions_per_sec": 5120.0,
        "environment_steps_per_sec": 120.0,
        "replay_ratio": 32.0,
        "actor_idle_share": 0.2,
        "learner_wait_share": 0.25,
        "finished_episodes": 4.0,
        "policy_lag": 10.0,
        "clipped_target_share": 0.04,
        "refused_environment_steps": 2.0,
        "replaced_actors": 4.0,
    } == pytest.approx(found)
    # A window without learner steps has nothing to divide by.
    assert {} == figures(idle, (1.0, 5, {}), (1.0, 5, {}))


def test_pauses_of_a_window_do_not_count(idle):
    found = figures(
        idle,
        (0.0, 0, {"num_environment_steps": 0}),
        (5.0, 100, {"num_environment_steps": 10}),
        (905.0, 100, {"num_environment_steps": 70}),
        (910.0, 200, {"num_environment_steps": 90}),
        pauses=["pause", "resume", "pause"],
    )

    assert 20.0 == found["learner_steps_per_sec"]
    assert 3.0 == found["environment_steps_per_sec"]
