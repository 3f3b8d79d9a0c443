"""D4PG as it is measured: options, determinism, replicas, faults, figures."""

import itertools
import math

import numpy as np
import pytest
import small_programs
import tensorflow as tf

import replicator
from workloads import catalog
from workloads.d4pg import config
from workloads.d4pg import program as d4pg_program
from workloads.d4pg.pool import Counters
from workloads.d4pg.program import Window, describe, describe_now


def build(
    backend="single", num_replicas=1, data="synthetic", count=8, seed=1, **options
):
    return small_programs.build(
        "d4pg",
        replicator.create(backend, num_replicas=num_replicas),
        data=data,
        per_replica_batch_size=count,
        seed=seed,
        **options,
    )


def test_data_is_named_by_domain_and_task():
    """A TFDS name is none here; near names are offered."""
    catalog.check_data("d4pg", "walker:run")
    with pytest.raises(ValueError, match=r"did you mean .*'cartpole:swingup'"):
        catalog.check_data("d4pg", "cartpole-swingup")
    with pytest.raises(ValueError, match=r"data 'walker:fly' is unknown"):
        build(data="walker:fly")


def test_real_data_need_learners_that_run_the_program():
    """Workers that only serve TensorFlow have no actors beside them."""

    class TwoWorkers(replicator.ParameterServerReplicator):
        num_programs, num_workers = 1, 2

        def __init__(self):
            """Starts nothing."""

    with pytest.raises(ValueError, match=r"'reacher:easy' needs actors .* synthetic"):
        d4pg_program._input_mode(TwoWorkers(), "reacher:easy")


@pytest.mark.parametrize("observations", ["state", "pixels"])
def test_synthetic_data_is_determined_by_the_seed(observations):
    found = []
    small = {"num_features": 8, "num_conv_filters": 4}
    for seed in (1, 1, 2):
        made = build(seed=seed, count=2, observations=observations, **small)
        batches = itertools.islice(made.batches(), 3)
        found.append([_bytes_of(batch) for batch in batches])

    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])
    assert 3 == len(set(found[0]))


def _bytes_of(batch):
    return b"".join(leaf[0].numpy().tobytes() for leaf in tf.nest.flatten(batch))


@pytest.mark.parametrize(
    "observations", ["state", pytest.param("pixels", marks=pytest.mark.full)]
)
def test_losses_are_determined_by_the_seed(observations):
    """Weights are, as batches, so the same seed gives the same losses."""
    losses = []
    small = {"num_features": 8, "num_conv_filters": 4}
    for _ in range(2):
        made = build(count=2, observations=observations, **small)
        losses.append([made.run() for _ in range(3)])

    assert losses[0] == losses[1]
    assert all(np.isfinite(losses[0]))


def test_the_learner_learns_what_there_is_to_learn():
    """Of single rewards from 0 to 1, two of the 51 atoms at most; first it is any."""
    made = build(
        count=64, critic_sizes="32,32", discount=0.0, critic_learning_rate=3e-3
    )
    first = made.run()
    last = made.run(60)

    assert math.log(51) == pytest.approx(first, rel=0.01)
    assert last < math.log(2)
    assert all(check.is_passed for check in made.sanity()), made.sanity()


def test_replicas_draw_different_transitions_and_stay_alike():
    """A pipeline deals its batches in turn; averaged gradients keep weights equal."""
    made = build("in_graph", num_replicas=2, replay="prioritized")
    made.run(2)
    outputs = made.learner.run(made._inputs)
    first, second = (index.numpy().tolist() for index in outputs["index"])

    assert first != second
    assert (8, 16) == (made.per_replica_batch_size, made.global_batch_size)
    assert all(check.is_passed for check in made.sanity())
    assert "all_reduce" in made.explain()


def test_a_window_has_rates_of_the_learner():
    """And no figures of actors; there is nothing to evaluate either."""
    made = build()
    made.run()
    made.start_window()
    made.run(5)
    found = {metric.name: metric for metric in made.window_metrics()}

    assert {"learner_steps_per_sec", "transitions_per_sec", "clipped_target_share"} == (
        set(found)
    )
    assert {5} == {metric.num_examples for metric in found.values()}
    rate = found["learner_steps_per_sec"].value
    assert 8 * rate == pytest.approx(found["transitions_per_sec"].value)
    assert made.num_environment_steps() is None
    assert () == made.evaluate()
    assert made.samples() is None


def test_atoms_that_cannot_hold_the_returns_are_reported():
    """As a figure and in one line that names the options."""
    made = build(lowest_return=-1.0, highest_return=1.0)
    made.start_window()
    made.run(2)
    line = (
        r"^\d\d% of the target distributions' probability lies outside the atoms, from "
        r"-1 to 1: set options lowest_return and highest_return to the range of "
        r"discounted returns$"
    )
    with pytest.warns(UserWarning, match=line):
        found = {m.name: m.value for m in made.window_metrics()}

    assert 0.5 < found["clipped_target_share"] <= 1.0


def test_a_loss_that_is_not_finite_is_reported(tmp_path):
    """Whoever measures names the learner step; a checkpoint names the variable."""
    made = build()
    made.run(2)
    assert made.save(str(tmp_path)) is not None
    for variable in made.learner.critic.trainable_variables:
        variable.assign(tf.fill(variable.shape, math.nan))

    assert math.isnan(made.run())
    assert all(math.isnan(loss) for loss in made.losses_of_replicas())
    assert not made.sanity()[0].is_passed
    with pytest.raises(FloatingPointError, match=r"is not finite after"):
        made.save(str(tmp_path))


def test_a_policy_that_is_not_finite_ends_the_run():
    """With the learner step; the critic's loss is sound until targets are copied."""
    made = build(policy_learning_rate=1e38)
    assert np.isfinite(made.run())
    line = (
        r"^the policy's actions have no finite value in learner step 1: lower option "
        r"policy_learning_rate=1e\+38$"
    )
    with pytest.raises(FloatingPointError, match=line):
        made.run()
    assert math.isfinite(made._last_loss)


def test_a_checkpoint_holds_networks_targets_and_optimizers(tmp_path):
    """Read into another learner, the same batches lead to the same weights."""
    made, other = (build(seed=seed) for seed in (1, 2))
    made.run(3)
    made.save(str(tmp_path))
    repl = other._repl
    manager = repl.make_checkpoint_manager(str(tmp_path), **other._trackables())
    manager.restore()
    other.learner.num_steps = made.learner.num_steps
    batch = next(iter(made._inputs.pipelines[0]))
    fixed = [
        p._repl.make_input_iterator(
            lambda _: tf.data.Dataset.from_tensors(batch).repeat()
        )
        for p in (made, other)
    ]
    for _ in range(2):
        for program, inputs in zip((made, other), fixed, strict=True):
            program.learner.run(inputs)

    np.testing.assert_array_equal(
        made.learner.policy_weights(), other.learner.policy_weights()
    )


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="per_replica_batch_size 0 must be at least"):
        build(count=0)


def test_paper_values_are_the_control_suite_paper_s():
    """Tassa et al. 2018, section 5, and the D4PG paper where that says nothing."""
    paper = config.PRESETS["paper"]

    assert (101, -150.0, 150.0) == (
        paper.num_atoms,
        paper.lowest_return,
        paper.highest_return,
    )
    assert ((300, 200), (400, 300)) == (paper.policy_layers, paper.critic_layers)
    assert (5, 0.99, 100) == (
        paper.num_return_steps,
        paper.discount,
        paper.target_update_period,
    )
    assert (32, 1 / 32, 1.0) == (paper.num_actors, paper.noise_low, paper.noise_high)
    assert ("prioritized", 0.6, 10**6) == (
        paper.replay,
        paper.priority_exponent,
        paper.replay_capacity,
    )
    assert (1e-4, 1e-4) == (paper.policy_learning_rate, paper.critic_learning_rate)


def figures(*reads, pauses=(), num_pipelines=1, num_processes=1):
    """What a window says whose clocks and counters are read one after the other."""
    rows = [
        {**describe_now(num_steps, [counters]), "window_sec": time_sec}
        for time_sec, num_steps, counters in reads
    ]
    window = Window(iter(rows).__next__)
    for call in pauses:
        getattr(window, call)()
    process = {
        **window.changes(),
        "num_pipelines": num_pipelines,
        "clipped": 0.25,
        "policy_lag": 10.0,
    }
    metrics = describe([process] * num_processes, global_batch_size=256)
    return {metric.name: metric.value for metric in metrics}


def test_differences_are_counted_and_processes_added_up():
    """Two processes, each with one pipeline."""
    before = Counters(num_environment_steps=1000, num_episodes=1, num_sampled=50)
    after = Counters(
        num_environment_steps=1600,
        num_episodes=3,
        num_sampled=19_250,
        wait_sec=2.5,
        idle_sec=4.0,
        elapsed_sec=20.0,
        num_refused=1,
        num_restarts=2,
    )
    found = figures((10.0, 100, before), (20.0, 300, after), num_processes=2)

    assert {
        "learner_steps_per_sec": 20.0,
        "transitions_per_sec": 5120.0,
        "environment_steps_per_sec": 120.0,
        "replay_ratio": 32.0,
        "actor_idle_share": 0.2,
        "learner_wait_share": 0.25,
        "finished_episodes": 4.0,
        "policy_lag": 10.0,
        "clipped_target_share": 0.25,
        "refused_environment_steps": 2.0,
        "replaced_actors": 4.0,
    } == pytest.approx(found)


def test_without_actors_there_is_the_learner_alone():
    """As with synthetic data."""
    none = Counters()

    assert {
        "learner_steps_per_sec": 2.0,
        "transitions_per_sec": 512.0,
        "clipped_target_share": 0.25,
    } == figures((0.0, 0, none), (4.0, 8, none), num_pipelines=0)


def test_a_window_without_learner_steps_says_nothing():
    """There would be nothing to divide by."""
    assert {} == figures((1.0, 5, Counters()), (1.0, 5, Counters()))


@pytest.mark.parametrize("is_paused_at_the_end", [False, True])
def test_pauses_of_a_window_do_not_count(is_paused_at_the_end):
    """Two parts of 5 s and 100 learner steps each, with anything in between."""
    found = figures(
        (0.0, 0, Counters(num_environment_steps=0)),
        (5.0, 100, Counters(num_environment_steps=10)),
        (905.0, 100, Counters(num_environment_steps=70)),
        (910.0, 200, Counters(num_environment_steps=90)),
        pauses=["pause", "resume"] + ["pause"] * is_paused_at_the_end,
    )

    assert 20.0 == found["learner_steps_per_sec"]
    assert 3.0 == found["environment_steps_per_sec"]
