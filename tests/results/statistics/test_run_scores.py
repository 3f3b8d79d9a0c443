"""Interquartile means and performance profiles of runs."""

import numpy as np
import pytest
import scipy.stats

from results import errors
from results.statistics import run_scores


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
    """For whoever writes the value."""
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
    """There is nothing to take the mean of."""
    with pytest.raises(errors.ResultsError, match="must have at least one number"):
        run_scores.score(runs)


def test_runs_without_a_number_are_refused():
    """A run that failed is infinitely bad."""
    with pytest.raises(errors.ResultsError, match="none may be nan"):
        run_scores.score({"": [1.0, float("nan")]})
