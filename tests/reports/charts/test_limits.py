"""Axis limits show the estimates, however long an interval is."""

import pytest

from reports.charts import limits


@pytest.mark.parametrize("function", [limits.logarithmic, limits.linear])
def test_modest_intervals_are_shown_whole(function):
    """Ends near the estimates lie inside."""
    low, high = function([20.0, 40.0], [19.0, 42.0])

    assert low < 19.0
    assert high > 42.0


@pytest.mark.parametrize("function", [limits.logarithmic, limits.linear])
def test_absurd_intervals_do_not_squeeze_the_estimates(function):
    """An end beyond reach runs off the panel; estimates stay well inside."""
    low, high = function([20.0, 40.0], [0.0, 40_000.0])

    assert low < 20.0
    assert 40.0 < high < 80.0


@pytest.mark.parametrize("function", [limits.logarithmic, limits.linear])
def test_one_estimate_alone_has_room(function):
    low, high = function([3.0], [])

    assert low < 3.0 < high


def test_logarithmic_limits_are_positive():
    """Zero ends come from underflow and must not reach the axis."""
    low, _ = limits.logarithmic([1e-3], [0.0, 5.0])

    assert low > 0
