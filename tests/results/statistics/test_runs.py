"""Runs of a case: their scores, which are better, and the time to a target."""

import math

import numpy as np
import pytest
import scipy.stats

from results import errors
from results.statistics import run_scores
from results.statistics.run_scores import (
    Time,
    first_reached,
    median_time,
    probability_of_improvement,
)


@pytest.mark.parametrize("count", [10, 11, 40])
def test_the_interquartile_mean_is_scipys_trimmed_mean(count):
    """A quarter off either end, rounded down."""
    values = np.random.default_rng(count).exponential(size=count)

    assert scipy.stats.trim_mean(values, 0.25) == pytest.approx(
        run_scores.score({"": values.tolist()}).value
    )


def test_one_run_that_fails_does_not_move_it():
    """Four runs reach 800, one nothing: the mean would be 640."""
    assert 800.0 == run_scores.score({"": [800, 800, 0, 800, 800]}).value


def test_strata_are_drawn_apart():
    """Where runs differ between environments only, there is nothing uncertain."""
    apart = run_scores.score({"easy": [900.0] * 4, "hard": [100.0] * 4})
    mixed = run_scores.score({"": [900.0] * 4 + [100.0] * 4})

    assert (500.0, 500.0, 500.0) == (apart.low, apart.value, apart.high)
    assert mixed.low < 300.0
    assert mixed.high > 700.0
    assert apart.n == mixed.n == 8


def test_few_runs_have_no_interval():
    found = run_scores.score({"": [1.0, 2.0]})

    assert (1.5, None, None, 2) == (found.value, found.low, found.high, found.n)
    assert "fewer than 3 runs" in found.method


def test_three_runs_have_the_interval_of_students_t():
    """None is dropped, so it is the plain one."""
    values = [1.0, 2.0, 4.0]
    found = run_scores.score({"": values})
    low, high = scipy.stats.t.interval(
        0.95, 2, np.mean(values), scipy.stats.sem(values)
    )

    assert (low, high) == pytest.approx((found.low, found.high))
    assert found.method == run_scores.TRIMMED_T


@pytest.mark.parametrize("count", [5, 8, 9])
def test_a_few_runs_are_trimmed_like_yuens_test_does(count):
    """A fifth of the runs off either end; SciPy's test against many equal runs."""
    values = np.random.default_rng(count).exponential(size=count)
    found = run_scores.score({"": values.tolist()})
    truth = scipy.stats.trim_mean(values, 0.2)
    # Yuen's test of two groups; the second has no spread but rounding.
    shifted = 0.7
    expected = scipy.stats.ttest_ind(
        values,
        shifted + np.linspace(-1e-9, 1e-9, 10_000),
        equal_var=False,
        trim=0.2,
    )
    kept = count - 2 * int(0.2 * count)
    half = found.high - found.value
    quantile = scipy.stats.t.ppf(0.975, kept - 1)

    assert truth == pytest.approx(found.value)
    assert (truth - shifted) / expected.statistic == pytest.approx(
        half / quantile, rel=1e-6
    )


def test_ten_runs_have_an_interquartile_mean():
    """The bootstrap covers well enough from there on."""
    found = run_scores.score({"": list(map(float, range(10)))})

    assert found.value == 4.5
    assert found.method == run_scores.METHOD


@pytest.mark.parametrize(
    ("runs", "strata", "statistic"),
    [
        (3, 1, "typical run (trimmed mean; of so few runs none is left out)"),
        (5, 1, "mean without a fifth of the runs at either end"),
        (10, 1, "interquartile mean"),
        (8, 2, "interquartile mean"),
    ],
)
def test_the_mean_that_is_taken_has_a_name(runs, strata, statistic):
    assert statistic == run_scores.statistic_of(runs, strata)


@pytest.mark.parametrize("count", [3, 7, 20])
def test_shares_of_a_profile_have_exact_intervals(count):
    """SciPy's Clopper-Pearson interval at every level, also where all or none are."""
    values = list(map(float, range(count)))
    levels = [-1.0, *(value + 0.5 for value in values)]
    found = run_scores.profile({"": values}, levels)

    for place, level in enumerate(levels):
        reached = sum(value >= level for value in values)
        exact = scipy.stats.binomtest(reached, count).proportion_ci(method="exact")
        assert (exact.low, exact.high) == pytest.approx(
            (found.lows[place], found.highs[place])
        )


def test_a_profile_is_the_share_of_runs_that_reached_each_threshold():
    """Reaching it exactly counts; shares never rise with the threshold."""
    runs = {"": [100.0, 500.0, 500.0, 700.0, 900.0]}
    found = run_scores.profile(runs, [0.0, 100.0, 500.0, 600.0, 901.0])

    assert (1.0, 1.0, 0.8, 0.4, 0.0) == pytest.approx(found.shares)
    assert all(
        low <= share <= high
        for low, share, high in zip(found.lows, found.shares, found.highs, strict=True)
    )
    assert found.lows[3] < 0.4 < found.highs[3]
    assert () == run_scores.profile({"": [1.0, 2.0]}, [0.0]).lows


def test_figures_do_not_depend_on_chance():
    """The same runs give the same interval, in whatever order they are looked at."""
    values = np.random.default_rng(1).normal(500, 100, 10).tolist()

    assert run_scores.score({"": values}) == run_scores.score({"": values})


@pytest.mark.parametrize("runs", [{}, {"": []}, {"a": [1.0], "b": []}])
def test_no_runs_are_refused(runs):
    with pytest.raises(errors.ResultsError, match="must have at least one number"):
        run_scores.score(runs)


def test_runs_without_a_number_are_refused():
    """A run that failed is infinitely bad."""
    with pytest.raises(errors.ResultsError, match="none may be nan"):
        run_scores.score({"": [1.0, float("nan")]})


def test_the_estimate_is_the_share_of_better_pairs():
    """Mann and Whitney's U over the number of pairs; ties count half."""
    first, second = [3.0, 5.0, 7.0, 7.0], [4.0, 7.0, 1.0]
    u = scipy.stats.mannwhitneyu(first, second).statistic
    found = probability_of_improvement(first, second, is_higher_better=True)

    assert u / 12 == pytest.approx(found.value)
    assert found.n == 3


def test_either_direction_gives_the_same_evidence():
    """Where less is better, and where the cases are exchanged."""
    first, second = [3.0, 5.0, 9.0, 7.0], [4.0, 8.0, 1.0]
    more = probability_of_improvement(first, second, is_higher_better=True)
    less = probability_of_improvement(first, second, is_higher_better=False)
    exchanged = probability_of_improvement(second, first, is_higher_better=True)

    for other in (less, exchanged):
        assert other.value == pytest.approx(1 - more.value)
        assert (other.low, other.high) == pytest.approx((1 - more.high, 1 - more.low))


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
    first, second = range(n + 1, 2 * n + 1), range(1, n + 1)
    found = probability_of_improvement(first, second, is_higher_better=True)

    assert (found.value, found.high) == (1.0, 1.0)
    assert least < found.low < most


def test_equal_runs_are_one_half():
    found = probability_of_improvement([1.0] * 4, [1.0] * 4, is_higher_better=True)

    assert found.value == 0.5
    assert found.low < 0.5 < found.high


def test_two_runs_have_no_probability():
    found = probability_of_improvement(
        [1.0, 2.0], [0.0, 3.0, 4.0], is_higher_better=True
    )

    assert (found.low, found.high) == (None, None)
    assert "fewer than 3 runs" in found.method


@pytest.mark.parametrize("runs", [[], [1.0, math.nan]])
def test_runs_without_a_result_are_refused(runs):
    with pytest.raises(
        errors.ResultsError,
        match=r"^second (holds \[.*\], none may be nan; what failed is infinitely bad|"
        r"is \[\], must be a sequence of one or more numbers)$",
    ):
        probability_of_improvement([1.0], runs, is_higher_better=True)


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


@pytest.mark.parametrize(
    ("amounts", "value", "low", "high", "confidence"),
    [
        ((1, 2, 3), 2, 1, 3, 0.75),
        ((1, 2, 3, 4), 2.5, 1, 4, 0.875),
        ((1, 2, 3, 4, 5), 3, 1, 5, 0.9375),
        ((5, 1, 3, 2, 4, 9), 3.5, 1, 9, 0.96875),
        # The sixth fastest and the sixth slowest.
        (range(1, 21), 10.5, 6, 15, 0.9586),
    ],
)
def test_an_interval_of_the_median_states_what_it_is_worth(
    amounts, value, low, high, confidence
):
    """All reached it; few are enclosed by the fastest and the slowest."""
    found = median_time(_times(*amounts), unit="s")

    assert (found.median.value, found.median.low, found.median.high) == (
        value,
        low,
        high,
    )
    assert found.median.confidence == pytest.approx(confidence, abs=1e-4)
    assert found.budget is None


def test_two_runs_have_no_median_time():
    found = median_time(_times(1, 2), unit="s")

    assert not found.median.has_interval
    assert found.median.method == (
        "no interval: fewer than 3 runs say too little about the spread"
    )


def test_a_censored_run_opens_the_upper_end():
    """The median is known; how slow the slowest run is, is not."""
    found = median_time(_times(10, 20, ended=(60,)), unit="s")

    assert (found.median.value, found.median.low, found.median.high) == (
        20,
        10,
        math.inf,
    )


def test_the_median_of_runs_that_mostly_fail_is_beyond_the_budget():
    """Dropping the failures would have given 10."""
    found = median_time(_times(10, ended=(60, 60)), unit="s")

    assert found.median.value == math.inf


def test_what_lies_beyond_the_first_end_is_not_known():
    """A run that ended at 15 could have been faster than the one that needed 20."""
    found = median_time(_times(10, 20, ended=(15,)), unit="s")

    assert found.median.value == math.inf
    assert found.budget == 15
    assert found.num_reached == 2


def test_a_curve_without_evaluations_is_an_error():
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
        median_time(_times(*amounts), unit="s")
