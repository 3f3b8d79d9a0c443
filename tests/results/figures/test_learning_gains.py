"""What quality runs reach, and when; more replicas are compared with the fewest."""

import dataclasses
import math
import statistics

import pytest

from results import errors
from results.figures import learning_gains
from results.records.models import ScalingMode, TrialStatus
from results.statistics import run_scores
from results.study import cases
from results.study.cases import load_study


def study_of(root, synthetic, num_runs):
    shape = synthetic.Shape(
        backends=("in_graph",),
        repeats=1,
        budget=synthetic.LEARNING,
        num_learning_runs=num_runs,
    )
    return load_study(synthetic.make_store(root, shape))


@pytest.fixture(scope="module")
def study(tmp_path_factory, synthetic):
    return study_of(tmp_path_factory.mktemp("gains"), synthetic, 5)


def reached(study, num_replicas):
    return [
        entry.result.curve[-1].quality[0].value
        for case in study.quality_runs
        for entry in case.ok_entries
        if case.spec.num_replicas == num_replicas
    ]


def test_the_target_is_what_the_fewest_replicas_reach(study):
    """The worst of five runs: all reach it, at their end or before."""
    (found,) = learning_gains.of_study(study)
    first, second = found.cases

    assert min(reached(study, 1)) == found.target
    assert first.examples.num_reached == 5
    assert (5, 5) == (first.seconds.median.n, second.seconds.median.n)
    assert "s" == first.seconds.median.unit


def test_better_is_the_share_of_better_pairs(study):
    """The fewest replicas are not compared with themselves."""
    (found,) = learning_gains.of_study(study)
    first, second = found.cases
    pairs = [
        1.0 if a > b else 0.5 * (a == b)
        for a in reached(study, 2)
        for b in reached(study, 1)
    ]

    assert first.better is None
    assert second.better is not None
    assert pytest.approx(statistics.mean(pairs)) == second.better.value
    assert second.better.low is not None


def test_two_seeds_are_too_few(tmp_path, synthetic):
    """No table is better than one without intervals."""
    assert () == learning_gains.of_study(study_of(tmp_path, synthetic, 2))


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_metric_of_unknown_direction_is_not_compared(study, is_declared):
    """Nobody can say what better is: its workload says neither, or nothing."""
    facts = study.metrics["top_1"].model_copy(update={"is_higher_better": None})
    metrics = (facts,) if is_declared else ()
    plan = study.plan.model_copy(update={"metrics": metrics})

    assert () == learning_gains.of_study(dataclasses.replace(study, plan=plan))


def with_failed(study, num_replicas, numbers):
    """Returns the study where some quality runs of a case failed, from the worst on."""
    (case,) = (c for c in study.quality_runs if c.spec.num_replicas == num_replicas)
    ordered = sorted(
        case.ok_entries, key=lambda entry: entry.result.curve[-1].quality[0].value
    )
    ids = {ordered[number].trial_id for number in numbers}
    return dataclasses.replace(
        study,
        entries=tuple(
            dataclasses.replace(entry, state="failed", reason="nan")
            if entry.trial_id in ids
            else entry
            for entry in study.entries
        ),
    )


@pytest.mark.parametrize("num_failed", [1, 2, 3, 4])
def test_a_run_that_failed_is_worse_than_any_other(study, num_failed):
    """Failures, from the worst run on, make no case better, and none is dropped."""
    (before,) = learning_gains.of_study(study)
    (after,) = learning_gains.of_study(with_failed(study, 2, range(num_failed)))
    (best,) = learning_gains.of_study(with_failed(study, 2, range(5 - num_failed, 5)))
    was, now = before.cases[1], after.cases[1]

    assert was.better is not None
    assert now.better is not None
    assert best.cases[1].better is not None
    assert now.better.value <= was.better.value
    assert best.cases[1].better.value < was.better.value
    assert (5, 5) == (now.better.n, now.seconds.median.n)
    assert now.seconds.num_reached <= 5 - num_failed
    assert (now.seconds.median.value == math.inf) is (num_failed > 2)


def test_a_target_of_runs_of_which_some_failed_says_what_it_is_worth(study):
    """The worst that did not fail, which equal runs miss more often than one in ten."""
    (found,) = learning_gains.of_study(with_failed(study, 1, range(3)))
    (all_ok,) = learning_gains.of_study(study)

    assert all_ok.missed < 0.1
    assert found.missed > 0.5
    assert sorted(reached(study, 1))[3] == found.target


@pytest.mark.parametrize(
    ("num_failed", "is_finite"), [(0, True), (1, True), (2, False)]
)
def test_a_robust_mean_leaves_out_a_fifth_of_failures_and_no_more(
    study, num_failed, is_finite
):
    """Beyond that it says so; the mean of the others would be that of survivors."""
    values = sorted(reached(study, 2))
    failed = run_scores.score({"": [-math.inf] * num_failed + values[num_failed:]})

    assert 5 == failed.n
    assert math.isfinite(failed.value) is is_finite
    assert failed.has_interval is is_finite
    if num_failed:
        assert failed.value <= run_scores.score({"": values}).value


@pytest.fixture
def make_case(tmp_path, synthetic):
    """Makes the quality runs of in_graph with two replicas, three seeds."""

    def make(**statuses):
        shape = synthetic.Shape(
            budget=synthetic.LEARNING, num_learning_runs=3, repeats=1, **statuses
        )
        found = cases.load_study(synthetic.make_store(tmp_path, shape))
        return next(
            case
            for case in found.quality_runs
            if (case.spec.backend, case.spec.num_replicas) == ("in_graph", 2)
        )

    return make


def _values(case):
    """The first metric, and its values in each run."""
    runs = [entry.result.curve for entry in case.ok_entries]
    name = runs[0][0].quality[0].name
    return name, [
        [q.value for point in run for q in point.quality if q.name == name]
        for run in runs
    ]


@pytest.mark.parametrize("axis", list(learning_gains.Axis))
def test_every_run_that_meets_the_target_at_once_needs_its_first_evaluation(
    make_case, axis
):
    case = make_case()
    name, _ = _values(case)
    found = learning_gains.time_to_axis(
        case, name, -1e9, is_higher_better=True, axis=axis
    )
    first = sorted(axis.of(entry.result.curve[0]) for entry in case.ok_entries)

    assert found.median.value == first[1]
    assert (found.num_reached, found.median.n, found.median.unit) == (3, 3, axis.value)


def test_runs_that_do_not_reach_the_target_are_shown_as_such(make_case):
    """No run is dropped, and no number made up."""
    case = make_case()
    name, _ = _values(case)
    found = learning_gains.time_to_axis(
        case, name, 1e9, is_higher_better=True, axis=learning_gains.Axis.SECONDS
    )

    assert (found.median.value, found.num_reached, found.median.n) == (math.inf, 0, 3)


def test_a_trial_that_failed_never_reached_the_target(make_case):
    """It counts as one run of three."""
    case = make_case(
        statuses={("in_graph", mode, 2, 1): TrialStatus.FAILED for mode in ScalingMode}
    )
    name, _ = _values(case)
    found = learning_gains.time_to_axis(
        case, name, -1e9, is_higher_better=True, axis=learning_gains.Axis.EXAMPLES
    )

    assert (found.num_reached, found.median.n) == (2, 3)
    assert found.median.high == math.inf


def test_a_metric_that_runs_do_not_have_is_an_error(make_case):
    case = make_case()
    name, _ = _values(case)
    with pytest.raises(
        errors.ResultsError,
        match=rf"^quality runs of '.*' have no metric 'loss'; they have .*{name}",
    ):
        learning_gains.time_to_axis(
            case, "loss", 1.0, is_higher_better=True, axis=learning_gains.Axis.SECONDS
        )
