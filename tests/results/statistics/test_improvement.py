"""The probability that a run of one case is better than one of another."""

import math

import pytest
import scipy.stats

from results import errors
from results.statistics.improvement import probability


def test_the_estimate_is_the_share_of_better_pairs():
    """Mann and Whitney's U over the number of pairs; ties count half."""
    first, second = [3.0, 5.0, 7.0, 7.0], [4.0, 7.0, 1.0]
    u = scipy.stats.mannwhitneyu(first, second).statistic
    found = probability(first, second, is_higher_better=True)

    assert u / 12 == pytest.approx(found.value)
    assert found.n == 3


def test_either_direction_gives_the_same_evidence():
    """Where less is better, and where the cases are exchanged."""
    first, second = [3.0, 5.0, 9.0, 7.0], [4.0, 8.0, 1.0]
    more = probability(first, second, is_higher_better=True)
    less = probability(first, second, is_higher_better=False)
    exchanged = probability(second, first, is_higher_better=True)

    for other in (less, exchanged):
        assert other.value == pytest.approx(1 - more.value)
        assert (other.low, other.high) == pytest.approx((1 - more.high, 1 - more.low))


def test_three_runs_that_are_all_better_are_no_evidence():
    """Chance alone does this in one study of ten."""
    found = probability([4, 5, 6], [1, 2, 3], is_higher_better=True)

    assert (found.value, found.high) == (1.0, 1.0)
    assert 0.3 < found.low < 0.5


def test_five_runs_that_are_all_better_are_evidence():
    """The interval has a width though all pairs agree."""
    found = probability([6, 7, 8, 9, 10], [1, 2, 3, 4, 5], is_higher_better=True)

    assert 0.5 < found.low < 0.6


def test_equal_runs_are_one_half():
    found = probability([1.0] * 4, [1.0] * 4, is_higher_better=True)

    assert found.value == 0.5
    assert found.low < 0.5 < found.high


def test_two_runs_have_no_interval():
    found = probability([1.0, 2.0], [0.0, 3.0, 4.0], is_higher_better=True)

    assert (found.low, found.high) == (None, None)
    assert "fewer than 3 runs" in found.method


@pytest.mark.parametrize("runs", [[], [1.0, math.nan]])
def test_runs_without_a_result_are_refused(runs):
    """The case is named."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^second (holds \[.*\], none may be nan; what failed is infinitely bad|"
        r"is \[\], must be a sequence of one or more numbers)$",
    ):
        probability([1.0], runs, is_higher_better=True)
