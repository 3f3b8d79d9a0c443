"""Stopping on the width of an interval costs coverage, which widening restores."""

import numpy as np
import pytest

from results.statistics import estimates, generations

NUM_STUDIES = 20_000
MOST_GENERATIONS = 60
TARGETS = (2.0, 1.2, 0.8, 0.6, 0.5, 0.45, 0.4)
"""Half widths in standard deviations; they take from 5 to about 25 generations."""


def _coverage(target, *, is_widened=True):
    """The rule of ``is_precise_enough`` for all studies at once, on normal numbers."""
    generator = np.random.default_rng(5)
    logs = generator.standard_normal((NUM_STUDIES, MOST_GENERATIONS))
    numbers = np.arange(1, MOST_GENERATIONS + 1)
    centres = logs.cumsum(axis=1) / numbers
    squares = (logs**2).cumsum(axis=1) - numbers * centres**2
    quantiles = np.array(
        [np.inf, *(estimates.student_quantile(n) for n in numbers[:-1])]
    )
    with np.errstate(invalid="ignore"):
        halves = (
            np.array([generations.widening(n) if is_widened else 1.0 for n in numbers])
            * quantiles
            * np.sqrt(np.maximum(squares, 0) / np.maximum(numbers - 1, 1) / numbers)
        )
    is_over = (halves <= target) & (numbers >= generations.FEWEST_TO_STOP)
    is_over[:, -1] = True
    stop = (np.arange(NUM_STUDIES), is_over.argmax(axis=1))
    return float((np.abs(centres[stop]) <= halves[stop]).mean())


@pytest.mark.parametrize("target", TARGETS)
def test_widened_intervals_cover_as_stated(target):
    """Whatever the target: between 93.8 and 95.3 %, and the noise of the simulation."""
    assert 0.934 <= _coverage(target) <= 0.957


def test_without_widening_some_targets_would_not():
    """The reason for it: down to 92 %."""
    found = [_coverage(target, is_widened=False) for target in TARGETS]

    assert min(found) == pytest.approx(0.92, abs=0.006)
    assert max(found) == pytest.approx(0.949, abs=0.006)


def test_the_simulated_rule_is_the_one_that_is_used():
    """One study at a time, with the functions of results."""
    target, num_studies, num_covered = 0.6, 300, 0
    generator = np.random.default_rng(6)
    for _ in range(num_studies):
        logs = []
        while not generations.is_precise_enough(logs, np.expm1(target)):
            logs.append([float(generator.standard_normal())])
        estimate = generations.over_rounds(logs, is_stopped_on_width=True)
        assert np.log(estimate.high / estimate.value) <= target
        num_covered += not estimate.excludes(1.0)

    # Three standard errors.
    assert num_covered / num_studies == pytest.approx(
        _coverage(target), abs=3 * (0.06 / num_studies) ** 0.5
    )
