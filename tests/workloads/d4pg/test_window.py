"""Figures of a window from counters before and after."""

import dataclasses

import pytest

from workloads.d4pg.window import Counters, Window, describe, total

NOTHING = {"clipped": 0.0, "policy_lag": 0.0}


def counted(**fields):
    """Counters with a few that matter."""
    nothing = {field.name: 0 for field in dataclasses.fields(Counters)}
    return Counters(**{**nothing, **fields})


def figures(*processes):
    metrics = describe(processes, global_batch_size=256)
    return {metric.name: metric.value for metric in metrics}


def test_differences_are_counted_and_processes_added_up():
    """Two processes, each with one pipeline."""
    before = Window(
        10.0, 100, [counted(num_environment_steps=1000, num_episodes=1, num_sampled=50)]
    )
    after = Window(
        20.0,
        300,
        [
            counted(
                num_environment_steps=1600,
                num_episodes=3,
                num_sampled=19_250,
                wait_sec=2.5,
                idle_sec=4.0,
                elapsed_sec=20.0,
                num_refused=1,
                num_restarts=2,
            )
        ],
    )
    process = {**before.until(after), "clipped": 0.25, "policy_lag": 10.0}

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
    } == pytest.approx(figures(process, process))


def test_without_actors_there_is_the_learner_alone():
    """As with synthetic data."""
    process = {**Window(0.0, 0, []).until(Window(4.0, 8, [])), **NOTHING}

    assert {
        "learner_steps_per_sec": 2.0,
        "transitions_per_sec": 512.0,
        "clipped_target_share": 0.0,
    } == figures(process)


def test_a_window_without_learner_steps_says_nothing():
    """There would be nothing to divide by."""
    now = Window(1.0, 5, [])

    assert {} == figures({**now.until(now), **NOTHING})


def test_the_gaps_between_the_parts_of_a_window_do_not_count():
    """Two parts of 5 s and 100 learner steps each, with anything in between."""
    first = Window(0.0, 0, [counted(num_environment_steps=0)]).until(
        Window(5.0, 100, [counted(num_environment_steps=10)])
    )
    second = Window(905.0, 100, [counted(num_environment_steps=70)]).until(
        Window(910.0, 200, [counted(num_environment_steps=90)])
    )
    found = figures({**total([first, second]), **NOTHING})

    assert 20.0 == found["learner_steps_per_sec"]
    assert 3.0 == found["environment_steps_per_sec"]
    assert 1 == total([first, second])["num_pipelines"]
