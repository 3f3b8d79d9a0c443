"""Intervals of censored median times hold the median as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from results.statistics.time_to_target import Time, median

NUM_STUDIES = 1000
BUDGET = 130.0


@pytest.mark.parametrize("n", [3, 5, 8, 20])
@pytest.mark.parametrize("truth", [100.0, 150.0], ids=["reached", "beyond the budget"])
def test_coverage_is_as_stated(n: int, truth: float) -> None:
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
