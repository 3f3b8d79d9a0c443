"""What quality runs reach, and when; more replicas are compared with the fewest."""

import dataclasses
import math
import statistics

import pytest

from results import load_study
from results.figures import learning_gains


@pytest.fixture(scope="module")
def study_of(make, synthetic):
    fields = {"backends": ("in_graph",), "repeats": 1, "budget": synthetic.LEARNING}
    return lambda number: load_study(make(**fields, num_learning_runs=number))


@pytest.fixture(scope="module")
def study(study_of):
    return study_of(5)


def case_of(study, num_replicas):
    (found,) = (c for c in study.quality_runs if c.spec.num_replicas == num_replicas)
    return found


def reached(study, num_replicas):
    entries = case_of(study, num_replicas).ok_entries
    return sorted(entry.result.curve[-1].quality[0].value for entry in entries)


def with_failed(study, num_replicas, numbers):
    """Returns the study where some quality runs of a case failed, from the worst on."""
    ordered = sorted(
        case_of(study, num_replicas).ok_entries,
        key=lambda entry: entry.result.curve[-1].quality[0].value,
    )
    ids = {ordered[number].trial_id for number in numbers}
    entries = (
        dataclasses.replace(entry, state="failed", reason="nan")
        if entry.trial_id in ids
        else entry
        for entry in study.entries
    )
    return dataclasses.replace(study, entries=tuple(entries))


def test_more_replicas_are_compared_with_the_fewest(study):
    (found,) = learning_gains.study_gains(study)
    first, second = found.cases
    pairs = [
        1.0 if a > b else 0.5 * (a == b)
        for a in reached(study, 2)
        for b in reached(study, 1)
    ]

    assert min(reached(study, 1)) == found.target
    assert found.missed < 0.1
    assert first.examples.num_reached == 5
    assert (5, 5) == (first.seconds.median.n, second.seconds.median.n)
    assert "s" == first.seconds.median.unit
    assert first.better is None
    assert pytest.approx(statistics.mean(pairs)) == second.better.value
    assert second.better.low is not None


def test_a_metric_of_unknown_direction_is_not_compared(study, study_of):
    facts = study.metrics["top_1"].model_copy(update={"is_higher_better": None})
    for metrics in ((facts,), ()):
        plan = study.plan.model_copy(update={"metrics": metrics})
        assert () == learning_gains.study_gains(dataclasses.replace(study, plan=plan))
    assert () == learning_gains.study_gains(study_of(2))


@pytest.mark.parametrize("num_failed", [1, 3])
def test_a_run_that_failed_is_worse_than_any_other(study, num_failed):
    was, now, best = (
        learning_gains.study_gains(of)[0].cases[1]
        for of in (
            study,
            with_failed(study, 2, range(num_failed)),
            with_failed(study, 2, range(5 - num_failed, 5)),
        )
    )

    assert now.better.value <= was.better.value
    assert best.better.value < was.better.value
    assert (5, 5) == (now.better.n, now.seconds.median.n)
    assert now.seconds.num_reached <= 5 - num_failed
    assert (now.seconds.median.value == math.inf) is (num_failed > 2)


def test_a_target_of_runs_of_which_some_failed_says_what_it_is_worth(study):
    (found,) = learning_gains.study_gains(with_failed(study, 1, range(3)))

    assert found.missed > 0.5
    assert reached(study, 1)[3] == found.target
