"""Seconds and examples to a target, from the records of quality runs."""

import math

import pytest

from results import errors
from results.figures import targets
from results.records.models import ScalingMode, TrialStatus
from results.study import cases


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


@pytest.mark.parametrize("axis", list(targets.Axis))
def test_every_run_that_meets_the_target_at_once_needs_its_first_evaluation(
    make_case, axis
):
    """In seconds of training and in examples."""
    case = make_case()
    name, _ = _values(case)
    found = targets.of_case(case, name, -1e9, is_higher_better=True, axis=axis)
    first = sorted(axis.of(entry.result.curve[0]) for entry in case.ok_entries)

    assert found.median.value == first[1]
    assert (found.num_reached, found.median.n, found.median.unit) == (3, 3, axis.value)


def test_runs_that_do_not_reach_the_target_are_shown_as_such(make_case):
    """No run is dropped, and no number made up."""
    case = make_case()
    name, _ = _values(case)
    found = targets.of_case(
        case, name, 1e9, is_higher_better=True, axis=targets.Axis.SECONDS
    )

    assert (found.median.value, found.num_reached, found.median.n) == (math.inf, 0, 3)


def test_a_trial_that_failed_never_reached_the_target(make_case):
    """It counts as one run of three."""
    case = make_case(
        statuses={("in_graph", mode, 2, 1): TrialStatus.FAILED for mode in ScalingMode}
    )
    name, _ = _values(case)
    found = targets.of_case(
        case, name, -1e9, is_higher_better=True, axis=targets.Axis.EXAMPLES
    )

    assert (found.num_reached, found.median.n) == (2, 3)
    assert found.median.high == math.inf


def test_a_metric_that_runs_do_not_have_is_an_error(make_case):
    """Those that they have are listed."""
    case = make_case()
    name, _ = _values(case)
    with pytest.raises(
        errors.ResultsError,
        match=rf"^quality runs of '.*' have no metric 'loss'; they have .*{name}",
    ):
        targets.of_case(
            case, "loss", 1.0, is_higher_better=True, axis=targets.Axis.SECONDS
        )
