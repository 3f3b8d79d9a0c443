"""Times to a target: a run that did not reach it is shown, never dropped."""

import math

import pytest

from results import errors
from results.statistics.time_to_target import Time, first_reached, median


def _times(*amounts, ended=()):
    return [
        *(Time(amount=a, is_reached=True) for a in amounts),
        *(Time(amount=a, is_reached=False) for a in ended),
    ]


@pytest.mark.parametrize(
    ("target", "is_higher_better", "expected"),
    [
        (0.5, True, Time(amount=200, is_reached=True)),
        (0.8, True, Time(amount=300, is_reached=True)),
        (0.9, True, Time(amount=300, is_reached=False)),
        (0.4, False, Time(amount=100, is_reached=True)),
    ],
)
def test_the_first_evaluation_that_meets_the_target_counts(
    target, is_higher_better, expected
):
    """At the end of the run it is censored."""
    curve = [(100, 0.4), (200, 0.5), (300, 0.8)]

    assert first_reached(curve, target, is_higher_better=is_higher_better) == expected


def test_the_median_of_runs_that_all_reached_it():
    """With six runs the fastest and the slowest enclose it with 97 %."""
    found = median(_times(5, 1, 3, 2, 4, 9), unit="s")

    assert (found.median.value, found.median.low, found.median.high) == (3.5, 1, 9)
    assert found.median.confidence == pytest.approx(0.96875)
    assert found.budget is None


@pytest.mark.parametrize(("n", "confidence"), [(3, 0.75), (4, 0.875), (5, 0.9375)])
def test_with_few_runs_the_interval_states_what_it_is_worth(n, confidence):
    found = median(_times(*range(1, n + 1)), unit="s")

    assert (found.median.low, found.median.high) == (1, n)
    assert found.median.confidence == pytest.approx(confidence)


def test_two_runs_have_no_interval():
    found = median(_times(1, 2), unit="s")

    assert not found.median.has_interval
    assert found.median.method == (
        "no interval: fewer than 3 runs say too little about the spread"
    )


def test_many_runs_have_a_shorter_interval():
    """Of twenty, the sixth fastest and the sixth slowest."""
    found = median(_times(*range(1, 21)), unit="s")

    assert (found.median.low, found.median.high) == (6, 15)
    assert found.median.confidence >= 0.95


def test_a_censored_run_opens_the_upper_end():
    """The median is known; how slow the slowest run is, is not."""
    found = median(_times(10, 20, ended=(60,)), unit="s")

    assert (found.median.value, found.median.low, found.median.high) == (
        20,
        10,
        math.inf,
    )


def test_the_median_of_runs_that_mostly_fail_is_beyond_the_budget():
    """Dropping the failures would have given 10."""
    found = median(_times(10, ended=(60, 60)), unit="s")

    assert found.median.value == math.inf


def test_what_lies_beyond_the_first_end_is_not_known():
    """A run that ended at 15 could have been faster than the one that needed 20."""
    found = median(_times(10, 20, ended=(15,)), unit="s")

    assert found.median.value == math.inf
    assert found.budget == 15
    assert found.num_reached == 2


def test_a_curve_without_evaluations_is_an_error():
    """Positions ascend."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^positions of evaluations are \[2, 1\], must be one or more ascending "
        r"numbers$",
    ):
        first_reached([(2, 0.1), (1, 0.2)], 0.5, is_higher_better=True)
    with pytest.raises(
        errors.ResultsError, match=r"^positions of evaluations are \[\]"
    ):
        first_reached([], 0.5, is_higher_better=True)
    with pytest.raises(errors.ResultsError, match=r"^target is nan, must be a number$"):
        first_reached([(1, 0.2)], math.nan, is_higher_better=True)


@pytest.mark.parametrize("amounts", [(), (math.inf,), (-1.0,), (math.nan,)])
def test_times_must_be_finite(amounts):
    """An infinite time is written as a censored one."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^times of runs are \[.*\], must be one or more finite numbers of at "
        r"least 0; a run that did not reach the target has the time at which it ended$",
    ):
        median(_times(*amounts), unit="s")
