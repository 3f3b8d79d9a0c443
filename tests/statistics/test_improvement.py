"""Intervals of the probability of improvement hold it at least as often as they say."""

import numpy as np
import pytest
import scipy.stats

from results.statistics.improvement import probability

NUM_STUDIES = 400
# Binomial noise of NUM_STUDIES studies: three standard errors of 0.95.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_STUDIES) ** 0.5


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("distance", [0.0, 1.0, 2.0])
def test_coverage_is_at_least_as_stated(n, distance):
    """Normal results, apart by a number of standard deviations."""
    generator = np.random.default_rng(n)
    truth = scipy.stats.norm.cdf(distance / 2**0.5)
    covered = 0
    for _ in range(NUM_STUDIES):
        found = probability(
            generator.normal(distance, 1, n).tolist(),
            generator.normal(0, 1, n).tolist(),
            is_higher_better=True,
        )
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high

    assert covered / NUM_STUDIES >= 0.95 - TOLERANCE
