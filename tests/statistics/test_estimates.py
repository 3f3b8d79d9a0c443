"""Estimates: centres, intervals, pairing, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results import errors
from results.statistics import estimates

positive = st.floats(min_value=1e-3, max_value=1e6)


def test_one_repetition_has_no_interval_and_says_why():
    estimate = estimates.geometric_mean([42.0], unit="images/s")

    assert pytest.approx(42.0) == estimate.value
    assert (estimate.low, estimate.high, estimate.n) == (None, None, 1)
    assert "one repetition" in estimate.method


def test_interval_of_three_is_students_on_logs():
    """One group: the closed form of the studentized bootstrap."""
    logs = np.log([40.0, 41.0, 39.5])
    low, high = stats.t.interval(
        0.95, 2, loc=logs.mean(), scale=logs.std(ddof=1) / 3**0.5
    )
    estimate = estimates.geometric_mean([40.0, 41.0, 39.5], unit="images/s")

    assert np.exp(low) == pytest.approx(estimate.low)
    assert np.exp(high) == pytest.approx(estimate.high)


def test_ratio_pairs_by_key_not_by_position():
    """The order in which trials were read must not matter."""
    first = {(0, 7): 2.0, (1, 8): 4.0, (2, 9): 8.0}
    second = {(2, 9): 4.0, (0, 7): 1.0, (1, 8): 2.0}
    estimate = estimates.ratio(first, second)

    assert estimate.method == estimates.PAIRED
    assert pytest.approx((2.0, 2.0, 2.0)) == (
        estimate.low,
        estimate.value,
        estimate.high,
    )


def test_ratio_without_common_repetitions_is_unpaired():
    """A failed repetition on one side breaks the pairs, and the method says so."""
    estimate = estimates.ratio({0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 2: 1.1})

    assert estimate.method == estimates.TWO_GROUPS
    assert estimate.n == 2
    assert estimate.low < estimate.value < estimate.high


def test_ratio_to_one_repetition_has_no_interval():
    """An uncertain baseline of unknown spread cannot give an interval."""
    estimate = estimates.ratio({0: 2.0, 1: 2.1}, {0: 1.0})

    assert estimate.low is None
    assert estimate.method == estimates.NO_INTERVAL


@given(st.lists(positive, min_size=2, max_size=6), st.lists(positive, min_size=2))
def test_ratio_and_its_inverse_tell_the_same(first, second):
    """Both directions have reciprocal values and intervals."""
    a, b = dict(enumerate(first)), dict(enumerate(second))
    forward, backward = estimates.ratio(a, b), estimates.ratio(b, a)

    assert forward.value * backward.value == pytest.approx(1.0)
    # Draws of the two orders differ, so unpaired intervals agree only roughly.
    if forward.method == estimates.PAIRED:
        assert forward.low * backward.high == pytest.approx(1.0)


def test_same_input_gives_the_same_bytes():
    """The bootstrap is seeded."""
    first, second = {0: 2.0, 1: 2.2, 2: 1.9}, {5: 1.0, 6: 1.1, 7: 0.9}
    before = estimates.ratio(first, second)
    estimates._draws.cache_clear()

    assert before == estimates.ratio(first, second)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"values is \[\], must be a sequence of one or more"),
        ([1.0, 0.0], r"values holds \[1\.0, 0\.0\], all must be positive and finite"),
        ([1.0, float("nan")], r"must be positive and finite; trials whose sanity"),
    ],
)
def test_values_that_are_no_measurement_are_refused(values, message):
    with pytest.raises(errors.ResultsError, match=message):
        estimates.geometric_mean(values, unit="images/s")


def test_excludes_needs_an_interval():
    alone = estimates.geometric_mean([2.0], unit="")
    sure = estimates.geometric_mean([2.0, 2.01, 1.99], unit="")

    assert not alone.excludes(1.0)
    assert sure.excludes(1.0)
    assert not sure.excludes(2.0)


def test_scaling_scales_value_and_interval():
    """Efficiency is speedup over n: all three numbers are divided."""
    estimate = estimates.geometric_mean([2.0, 2.2], unit="x").scaled(0.5, "y")
    original = estimates.geometric_mean([2.0, 2.2], unit="x")

    assert (original.value / 2, original.low / 2, original.high / 2, "y") == (
        estimate.value,
        estimate.low,
        estimate.high,
        estimate.unit,
    )
