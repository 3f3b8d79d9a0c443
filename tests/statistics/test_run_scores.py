"""Intervals of interquartile means hold the truth as often as they say."""

import numpy as np
import pytest
import scipy.stats

from results.statistics import run_scores

NUM_STUDIES = 400
# Of which the widths of intervals are compared, which differ by a factor of 4.
NUM_WIDTHS = 50
# Binomial noise of NUM_STUDIES studies: three standard errors.
TOLERANCE = 3 * (0.9 * 0.1 / NUM_STUDIES) ** 0.5


def _returns(generator, n):
    """Runs of which one in five fails."""
    fails = generator.uniform(size=n) < 0.2
    return np.where(fails, generator.normal(100, 30, n), generator.normal(800, 40, n))


def _truth(draw):
    return float(scipy.stats.trim_mean(draw(400_000), 0.25))


@pytest.mark.parametrize(("n", "stated"), [(3, 0.96), (5, 0.94), (8, 0.95)])
def test_coverage_of_few_runs_is_as_stated(n, stated):
    """The table in the module's docstring: the trimmed t, one run in five fails."""
    generator = np.random.default_rng(n)
    everything = np.sort(_returns(generator, 400_000))
    truth = everything[80_000:320_000].mean()
    covered = 0
    for _ in range(NUM_STUDIES):
        found = run_scores.score({"": _returns(generator, n).tolist()})
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high

    assert covered / NUM_STUDIES == pytest.approx(stated, abs=TOLERANCE)


@pytest.mark.parametrize(("n", "stated"), [(10, 0.93), (20, 0.95)])
def test_coverage_is_as_stated(n, stated):
    """The table in the module's docstring."""
    generator = np.random.default_rng(n)
    truth = _truth(lambda count: _returns(generator, count))
    covered = 0
    for _ in range(NUM_STUDIES):
        found = run_scores.score({"": _returns(generator, n).tolist()})
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high

    assert covered / NUM_STUDIES == pytest.approx(stated, abs=TOLERANCE)


def test_strata_make_intervals_shorter_and_still_true():
    """Two environments of unlike returns, eight runs each."""
    generator = np.random.default_rng(7)

    def draw(n):
        return {
            "easy": generator.normal(900, 30, n),
            "hard": generator.normal(300, 60, n),
        }

    truth = scipy.stats.trim_mean(np.concatenate([*draw(200_000).values()]), 0.25)
    covered, apart, mixed = 0, 0.0, 0.0
    for index in range(NUM_STUDIES):
        runs = draw(8)
        found = run_scores.score(runs)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
        if index >= NUM_WIDTHS:
            continue
        together = run_scores.score({"": np.concatenate([*runs.values()])})
        apart += found.high - found.low
        mixed += (together.high or 0) - (together.low or 0)

    assert covered / NUM_STUDIES > 0.85
    assert apart < 0.5 * mixed


def test_a_profile_s_band_holds_the_share_that_reaches_a_threshold():
    """Pointwise: four runs in five reach 600, ten are seen."""
    generator = np.random.default_rng(11)
    covered = 0
    for _ in range(NUM_STUDIES):
        found = run_scores.profile({"": _returns(generator, 10).tolist()}, [600.0])
        covered += found.lows[0] <= 0.8 <= found.highs[0]

    # Exact intervals of a share hold it at least as often as stated; here five or
    # more of ten do, in 0.994.
    assert covered / NUM_STUDIES == pytest.approx(0.994, abs=TOLERANCE)
