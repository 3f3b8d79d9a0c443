"""Runs of a case: their scores, which are better, and the time to a target."""

import math

import numpy as np
import pytest
import scipy.stats

import results
from results import statistics
from results.statistics import Time, first_reached, median_time

TRIMMED_T = "trimmed t (Yuen): Student's t of the winsorized variance over runs"


def improvement(first, second, *, is_higher_better=True):
    return statistics.probability_of_improvement(
        first, second, is_higher_better=is_higher_better
    )


def interval(estimate):
    return estimate.low, estimate.value, estimate.high


@pytest.mark.parametrize("count", [10, 11])
def test_from_ten_runs_on_the_score_is_scipys_trimmed_mean(count):
    values = np.random.default_rng(count).exponential(size=count).tolist()
    found = statistics.score(values)

    assert scipy.stats.trim_mean(values, 0.25) == pytest.approx(found.value)
    assert TRIMMED_T == found.method
    assert found.low < found.value < found.high


@pytest.mark.parametrize(("count", "trim"), [(5, 0.2), (9, 0.2), (12, 0.25)])
def test_runs_are_trimmed_like_yuens_test_does(count, trim):
    """As many runs off either end; SciPy's test against many equal runs."""
    values = np.random.default_rng(count).exponential(size=count)
    found = statistics.score(values.tolist())
    truth = scipy.stats.trim_mean(values, trim)
    # Yuen's test of two groups; the second has no spread but rounding.
    shifted = 0.7
    expected = scipy.stats.ttest_ind(
        values, shifted + np.linspace(-1e-9, 1e-9, 10_000), equal_var=False, trim=trim
    )
    kept = count - 2 * int(trim * count)
    quantile = scipy.stats.t.ppf(0.975, kept - 1)
    error = (found.high - found.value) / quantile

    assert truth == pytest.approx(found.value)
    assert (truth - shifted) / expected.statistic == pytest.approx(error, rel=1e-6)


def test_three_runs_have_the_interval_of_students_t():
    values = [1.0, 2.0, 4.0]
    found, of_two = (statistics.score(of) for of in (values, values[:2]))
    expected = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))

    assert expected == pytest.approx((found.low, found.high))
    assert found.method == TRIMMED_T
    assert (None, 1.5, None) == interval(of_two)
    assert "fewer than 3 runs" in of_two.method


@pytest.mark.parametrize(
    ("num_failed", "is_finite"), [(0, True), (1, True), (2, False)]
)
def test_a_robust_mean_leaves_out_a_fifth_of_failures_and_no_more(
    num_failed, is_finite
):
    values = [0.7, 0.8, 0.81, 0.83, 0.9]
    failed = statistics.score([-math.inf] * num_failed + values[num_failed:])

    assert 5 == failed.n
    assert is_finite is math.isfinite(failed.value) is failed.has_interval
    assert failed.value <= statistics.score(values).value


def test_the_estimate_is_the_share_of_better_pairs():
    first, second = [3.0, 5.0, 7.0, 7.0], [4.0, 7.0, 1.0]
    u = scipy.stats.mannwhitneyu(first, second).statistic
    found = improvement(first, second)

    assert u / 12 == pytest.approx(found.value)
    assert found.n == 3
    # The same evidence where less is better, and where the cases are exchanged.
    for other in (
        improvement(first, second, is_higher_better=False),
        improvement(second, first),
    ):
        mirrored = [1 - end for end in reversed(interval(found))]
        assert mirrored == pytest.approx(list(interval(other)))


@pytest.mark.parametrize(
    ("n", "least", "most"),
    [
        # Chance alone does this in one study of ten: no evidence.
        (3, 0.3, 0.5),
        # The interval has a width though all pairs agree.
        (5, 0.5, 0.6),
    ],
)
def test_runs_that_are_all_better_are_evidence_where_they_are_many(n, least, most):
    found = improvement(range(n + 1, 2 * n + 1), range(1, n + 1))
    equal = improvement([1.0] * n, [1.0] * n)
    few = improvement([1.0, 2.0], [0.0, 3.0, 4.0])

    assert (found.value, found.high) == (1.0, 1.0)
    assert least < found.low < most
    assert equal.low < equal.value == 0.5 < equal.high
    assert (None, None) == (few.low, few.high)
    assert "fewer than 3 runs" in few.method


def times(*amounts, ended=()):
    return [
        *(Time(amount=a, is_reached=True) for a in amounts),
        *(Time(amount=a, is_reached=False) for a in ended),
    ]


@pytest.mark.parametrize(
    ("target", "is_higher_better", "expected"),
    [
        (0.8, True, Time(amount=300, is_reached=True)),
        (0.9, True, Time(amount=300, is_reached=False)),
        (0.4, False, Time(amount=100, is_reached=True)),
    ],
)
def test_the_first_evaluation_that_meets_the_target_counts(
    target, is_higher_better, expected
):
    curve = [(100, 0.4), (200, 0.5), (300, 0.8)]

    assert first_reached(curve, target, is_higher_better=is_higher_better) == expected


@pytest.mark.parametrize(
    ("amounts", "value", "low", "high", "confidence"),
    [
        ((1, 2, 3, 4), 2.5, 1, 4, 0.875),
        ((5, 1, 3, 2, 4, 9), 3.5, 1, 9, 0.96875),
        # The sixth fastest and the sixth slowest.
        (range(1, 21), 10.5, 6, 15, 0.9586),
    ],
)
def test_an_interval_of_the_median_states_what_it_is_worth(
    amounts, value, low, high, confidence
):
    found = median_time(times(*amounts), unit="s")

    assert (low, value, high) == interval(found.median)
    assert found.median.confidence == pytest.approx(confidence, abs=1e-4)
    assert found.budget is None


@pytest.mark.parametrize(
    ("reached", "ended", "median", "budget"),
    [
        # How slow the slowest run is, is not known.
        ((10, 20), (60,), (10, 20, math.inf), 60),
        # Dropping the failures would have given 10.
        ((10,), (60, 60), (10, math.inf, math.inf), 60),
        # A run that ended at 15 could have been faster than the one that needed 20.
        ((10, 20), (15,), (10, math.inf, math.inf), 15),
        ((1, 2), (), (None, 1.5, None), None),
    ],
)
def test_a_censored_run_opens_the_upper_end(reached, ended, median, budget):
    found = median_time(times(*reached, ended=ended), unit="s")

    assert (median, budget) == (interval(found.median), found.budget)
    assert found.num_reached == len(reached)
    has_none = found.median.method == (
        "no interval: fewer than 3 runs say too little about the spread"
    )
    assert has_none == (median[0] is None)


def test_a_target_is_what_the_worst_run_reached():
    first, _ = statistics.target_of(
        [3.0, 1.0, 2.0], is_higher_better=False, num_others=3
    )
    equal, _ = statistics.target_of([2.0] * 4, is_higher_better=True, num_others=4)
    failed, missed = statistics.target_of(
        [-math.inf] * 5 + [1.0, 2.0, 3.0], is_higher_better=True, num_others=3
    )

    assert (3.0, 2.0, 1.0) == (first, equal, failed)
    assert missed > 0.5


def test_what_is_no_run_is_refused():
    with pytest.raises(results.ResultsError, match="must be one or more ascending"):
        first_reached([(2, 0.1), (1, 0.2)], 0.5, is_higher_better=True)
