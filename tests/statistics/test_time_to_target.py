"""Intervals of censored median times hold the median as often as they say."""

import math

import numpy as np
import pytest

from results.statistics.time_to_target import MOST_MISSED, Time, median, target_of

NUM_STUDIES = 1000
BUDGET = 130.0


@pytest.mark.parametrize("n", [3, 4, 5, 8, 20])
def test_equal_cases_seem_to_never_get_there_as_often_as_stated(n):
    """Against the median of the others, one of 3 to 20 in two studies did."""
    generator = np.random.default_rng(n)
    missed = of_median = 0
    for _ in range(NUM_STUDIES):
        first, second = generator.standard_normal((2, n))
        # So many must reach it before the median is a number.
        enough = n // 2 + 1
        target, stated = target_of(first, is_higher_better=True, num_others=n)
        missed += (second >= target).sum() < enough
        of_median += (second >= np.median(first)).sum() < enough

    tolerance = 3 * (stated * (1 - stated) / NUM_STUDIES) ** 0.5
    assert missed / NUM_STUDIES == pytest.approx(stated, abs=tolerance)
    assert stated <= MOST_MISSED or n < 5
    assert of_median / NUM_STUDIES > 0.27


def test_a_target_of_costs_is_one_of_the_highest():
    """Equal results are all reached."""
    first, _ = target_of([3.0, 1.0, 2.0], is_higher_better=False, num_others=3)
    equal, _ = target_of([2.0] * 4, is_higher_better=True, num_others=4)
    failed, missed = target_of(
        [-math.inf] * 5 + [1.0, 2.0, 3.0], is_higher_better=True, num_others=3
    )

    assert (3.0, 2.0, 1.0) == (first, equal, failed)
    assert missed > 0.5


@pytest.mark.parametrize("n", [3, 5, 8, 20])
@pytest.mark.parametrize("truth", [100.0, 150.0], ids=["reached", "beyond the budget"])
def test_coverage_is_as_stated(n, truth):
    """Lognormal times of which a third or more are censored; open ends hold all."""
    generator = np.random.default_rng(n)
    covered, stated = 0, 0.0
    for _ in range(NUM_STUDIES):
        amounts = truth * np.exp(generator.normal(0, 0.6, n))
        found = median(
            [
                Time(amount=min(a, BUDGET), is_reached=bool(a <= BUDGET))
                for a in amounts
            ],
            unit="s",
        ).median
        # An end beyond the budget is known to be there, and not where.
        covered += min(found.low, BUDGET) <= truth <= found.high
        stated = found.confidence

    tolerance = 3 * (stated * (1 - stated) / NUM_STUDIES) ** 0.5
    assert covered / NUM_STUDIES >= stated - tolerance
    if truth < BUDGET:
        assert covered / NUM_STUDIES == pytest.approx(stated, abs=tolerance)
