"""Intervals of proportions."""

from __future__ import annotations

import pytest
import scipy.stats

from workloads import quality


@pytest.mark.parametrize(
    ("num_successes", "num_trials"), [(0, 5), (1, 10), (96, 359), (359, 359), (7, 8)]
)
def test_wilson_interval_equals_scipys(num_successes: int, num_trials: int) -> None:
    """The interval is Wilson's, as SciPy computes it."""
    reference = scipy.stats.binomtest(num_successes, num_trials).proportion_ci(
        confidence_level=0.95, method="wilson"
    )

    low, high = quality.wilson_interval(num_successes, num_trials)

    assert low == pytest.approx(reference.low, abs=1e-12)
    assert high == pytest.approx(reference.high, abs=1e-12)


def test_accuracy_carries_count_and_method() -> None:
    """A quality figure says how many examples and which interval are behind it."""
    metric = quality.accuracy("top_1", 90, 359)

    assert (metric.name, metric.num_examples) == ("top_1", 359)
    assert metric.value == pytest.approx(90 / 359)
    assert (metric.method, metric.confidence) == ("Wilson score interval", 0.95)
    assert metric.low < metric.value < metric.high


@pytest.mark.parametrize(("num_successes", "num_trials"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(num_successes: int, num_trials: int) -> None:
    """More successes than trials, or none tried, is an error."""
    with pytest.raises(ValueError, match="trials must be at least 1 and successes"):
        quality.wilson_interval(num_successes, num_trials)


def test_impossible_level_is_refused() -> None:
    """A level in percent is an error."""
    with pytest.raises(ValueError, match=r"confidence=95: use a ratio"):
        quality.wilson_interval(1, 2, confidence=95)


def test_mean_has_scipys_interval() -> None:
    """Student's t, as SciPy computes it."""
    values = [1.0, 2.0, 4.0, 9.0]
    reference = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)

    metric = quality.mean("episode_return", values, unit="return")

    assert (metric.value, metric.num_examples, metric.unit) == (4.0, 4, "return")
    assert metric.low == pytest.approx(reference.low)
    assert metric.high == pytest.approx(reference.high)


def test_mean_of_one_value_is_refused() -> None:
    """There is no spread, so there is no interval."""
    with pytest.raises(ValueError, match=r"got 1 value\(s\) of 'x': an interval needs"):
        quality.mean("x", [1.0], unit="")


def test_counted_figures_say_that_they_are() -> None:
    """Their interval is a point, and the method says why."""
    metric = quality.counted("rate", 2.5, unit="steps/s", num_examples=7)

    assert (2.5, 2.5, 2.5) == (metric.low, metric.value, metric.high)
    assert metric.method == "counted, not estimated"
