"""Estimates: centres, intervals, pairing, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results import errors
from results.statistics import estimates

positive = st.floats(min_value=1e-3, max_value=1e6)


def logs_of(estimate):
    return [math.log(of) for of in (estimate.low, estimate.value, estimate.high)]


def test_one_repetition_has_no_interval_and_says_why():
    estimate = estimates.geometric_mean([42.0], unit="images/s")

    assert (42.0, None, None, 1) == (
        pytest.approx(estimate.value),
        estimate.low,
        estimate.high,
        estimate.n,
    )
    assert "one repetition" in estimate.method
    assert not estimate.excludes(1.0)


@given(st.lists(positive, min_size=2, max_size=6, unique=True))
def test_interval_of_one_group_is_students_on_logs(values):
    logs = np.log(values)
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=logs.mean(), scale=stats.sem(logs)
    )
    estimate = estimates.geometric_mean(values, unit="images/s")

    assert [low, logs.mean(), high] == pytest.approx(logs_of(estimate), abs=1e-9)
    assert estimate.excludes(math.exp(high + 0.1))
    assert not estimate.excludes(math.exp(logs.mean()))


def test_ratio_pairs_by_key_not_by_position():
    first = {(0, 7): 2.0, (1, 8): 4.0, (2, 9): 8.0}
    second = {(2, 9): 4.0, (0, 7): 1.0, (1, 8): 2.0}
    estimate = estimates.ratio(first, second)

    assert estimate.method == estimates.PAIRED
    assert [math.log(2.0)] * 3 == pytest.approx(logs_of(estimate))


def test_ratio_without_common_repetitions_is_unpaired():
    estimate = estimates.ratio({0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 2: 1.1})
    to_one = estimates.ratio({0: 2.0, 1: 2.1}, {0: 1.0})

    assert (estimates.TWO_GROUPS, 2) == (estimate.method, estimate.n)
    assert estimate.low < estimate.value < estimate.high
    assert (estimates.NO_INTERVAL, None) == (to_one.method, to_one.low)


def test_the_drawn_quantile_is_students_where_one_group_is_certain():
    first = {0: 1.00, 1: 1.02, 2: 0.97}
    estimate = estimates.ratio(first, {10: 1.0, 11: 1.0, 12: 1.0})
    half = stats.t.ppf(0.975, 2) * stats.sem(np.log(list(first.values())))
    _, centre, high = logs_of(estimate)
    estimates._draws.cache_clear()

    assert half == pytest.approx(high - centre, rel=0.05)
    assert estimate == estimates.ratio(first, {10: 1.0, 11: 1.0, 12: 1.0})


def test_two_groups_agree_with_the_textbook():
    first, second = [0.11, 0.13, 0.02, 0.08], [0.01, -0.02, 0.04]
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = estimates.two_groups(first, second)
    ends = found.centre - found.half_width(0.9), found.centre + found.half_width(0.9)
    same = estimates.two_groups([0.1, 0.1], [0.1, 0.1])
    of_one = estimates.two_groups([0.1, 0.2], [0.1])

    assert pytest.approx(expected.pvalue) == found.p_value()
    assert pytest.approx(expected.df) == found.degrees_of_freedom
    assert pytest.approx(tuple(expected.confidence_interval(0.9))) == ends
    assert (1.0, True) == (same.p_value(), math.isfinite(same.half_width()))
    assert 0.0 == estimates.two_groups([0.2, 0.2], [0.1, 0.1]).p_value()
    assert (None, None, 1) == (of_one.half_width(), of_one.p_value(), of_one.n)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6, unique=True))
def test_p_value_is_students(logs):
    found = estimates.one_group(logs)

    assert stats.ttest_1samp(logs, 0).pvalue == pytest.approx(found.p_value(), abs=1e-9)
    assert (found.p_value() < 0.05) == (abs(found.centre) > found.half_width())


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, math.nan]])
def test_values_that_are_no_measurement_are_refused(values):
    with pytest.raises(errors.ResultsError, match=r"^values (is|holds) \[.*must be"):
        estimates.geometric_mean(values, unit="images/s")


def test_the_wildest_repetitions_have_an_interval_of_floats():
    found = estimates.ratio({0: 1e-20, 1: 1e29}, {0: 1e29, 1: 1e-20})

    assert 0 <= found.low < 1 < found.high < math.inf
