"""The 95 % intervals hold the truth about 95 % of the time, even at n = 3."""

import numpy as np
import pytest
from scipy import stats

from results.statistics import repetitions

NUM_STUDIES = 1500
# Binomial noise of NUM_STUDIES studies: three standard errors of 0.95.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_STUDIES) ** 0.5
TRUE_THROUGHPUT = 40.0
TRUE_RATIO = 1.7


def _throughputs(generator, n, mean, sigma):
    values = mean * np.exp(generator.normal(0, sigma, n))
    return dict(enumerate(values.tolist()))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_one_group_covers_as_stated(n):
    """Lognormal noise of 3 %, one group."""
    generator = np.random.default_rng(n)
    covered = 0
    for _ in range(NUM_STUDIES):
        values = list(_throughputs(generator, n, TRUE_THROUGHPUT, 0.03).values())
        estimate = repetitions.geometric_mean(values, unit="images/s")
        covered += not estimate.excludes(TRUE_THROUGHPUT)

    assert covered / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_paired_ratio_covers_as_stated_under_drift(n):
    """Repetitions drift by 10 % together; pairs must cancel it."""
    generator = np.random.default_rng(100 + n)
    covered = 0
    for _ in range(NUM_STUDIES):
        drift = np.exp(generator.normal(0, 0.10, n))
        first = _throughputs(generator, n, TRUE_RATIO, 0.03)
        second = _throughputs(generator, n, 1.0, 0.02)
        estimate = repetitions.ratio(
            {k: v * drift[k] for k, v in first.items()},
            {k: v * drift[k] for k, v in second.items()},
        )
        covered += not estimate.excludes(TRUE_RATIO)

    assert covered / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("num_first", "num_second", "sigma_first", "sigma_second"),
    [
        pytest.param(3, 3, 0.03, 0.03, marks=pytest.mark.full),
        (3, 3, 0.01, 0.03),
        (5, 3, 0.03, 0.03),
        pytest.param(10, 10, 0.01, 0.03, marks=pytest.mark.full),
    ],
)
def test_unpaired_ratio_covers_as_stated(
    num_first, num_second, sigma_first, sigma_second
):
    """Two groups without pairs, of unequal size and spread too.

    The full run adds groups of equal size and spread, and large ones.
    """
    generator = np.random.default_rng(1000 * num_first + num_second)
    covered = 0
    for _ in range(NUM_STUDIES):
        first = _throughputs(generator, num_first, TRUE_RATIO, sigma_first)
        second = _throughputs(generator, num_second, 1.0, sigma_second)
        estimate = repetitions.ratio(first, {-1 - k: v for k, v in second.items()})
        covered += not estimate.excludes(TRUE_RATIO)

    assert covered / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE + 0.01)


def test_percentile_bootstrap_would_undercover_at_three():
    """The reason for not using it: it holds the truth three times in four."""
    generator = np.random.default_rng(3)
    samples = generator.normal(0, 0.03, (NUM_STUDIES, 3))
    indices = generator.integers(0, 3, (999, 3))
    means = samples[:, indices].mean(axis=2)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    coverage = np.mean((low <= 0) & (high >= 0))

    assert coverage == pytest.approx(repetitions.PERCENTILE_COVERAGE, abs=0.03)


def test_skewed_noise_loses_coverage_as_stated():
    """An exponential slow tail: fewer than 95 %, and the report says how many."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(NUM_STUDIES):
        values = np.exp(-generator.exponential(0.03, 3))
        estimate = repetitions.geometric_mean(values.tolist(), unit="")
        covered += not estimate.excludes(float(np.exp(-0.03)))

    assert covered / NUM_STUDIES == pytest.approx(repetitions.SKEWED_COVERAGE, abs=0.03)


def test_drawn_quantile_approaches_student_when_one_group_is_certain():
    """With a noiseless denominator the bootstrap has a known answer."""
    first = {0: 1.00, 1: 1.02, 2: 0.97}
    estimate = repetitions.ratio(first, {10: 1.0, 11: 1.0, 12: 1.0})
    logs = np.log(list(first.values()))
    expected = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / 3**0.5

    assert expected == pytest.approx(
        np.log(estimate.high) - np.log(estimate.value), rel=0.05
    )
