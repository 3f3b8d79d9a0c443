"""A change of the mean is found where it is; outliers and constants have none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from results import errors
from results.statistics.change_points import (
    FEWEST,
    PENALTY,
    WIDENING,
    candidates,
    change_points,
)


def starts(values: np.ndarray) -> tuple[int, ...]:
    """Returns where the changes of a series are."""
    return tuple(point.start for point in change_points(list(values)))


def noise(length: int, seed: int = 3) -> np.ndarray:
    """Returns independent normal numbers."""
    return np.random.default_rng(seed).standard_normal(length)


def test_a_step_is_found_where_it_is() -> None:
    """Ten values, then ten that are eight deviations higher."""
    values = noise(20)
    values[10:] += 8

    assert starts(values) == (10,)


def test_two_changes_are_found() -> None:
    """Up, and down again."""
    values = noise(30)
    values[8:19] += 8

    assert starts(values) == (8, 19)


def test_a_single_outlier_is_no_change() -> None:
    """One study on a disturbed machine."""
    values = noise(20)
    values[9] -= 30

    assert starts(values) == ()


def test_equal_values_have_no_change() -> None:
    """There is no noise to compare a step with, and no step."""
    assert change_points([1.5] * FEWEST) == ()


def test_the_partition_is_the_best_of_all() -> None:
    """Compared with the cost of every partition of nine values into segments."""
    values = noise(9, seed=11)
    values[4:] += 5
    scale = float(np.mean(np.diff(values) ** 2)) / 2

    def cost(changes: tuple[int, ...]) -> float:
        ends = (0, *changes, len(values))
        segments = [values[a:b] for a, b in itertools.pairwise(ends)]
        if min(map(len, segments)) < 2:
            return math.inf
        squares = sum(float(((s - s.mean()) ** 2).sum()) for s in segments)
        return squares / scale + PENALTY * len(changes)

    partitions = [
        changes
        for number in range(4)
        for changes in itertools.combinations(range(1, len(values)), number)
    ]
    assert min(partitions, key=cost) == candidates(values) == (4,)


def test_the_interval_of_a_change_is_that_of_its_segments() -> None:
    """A pooled t test by another library, and wider, since the place was chosen."""
    values = noise(24)
    values[12:] += 8
    (point,) = change_points(list(values))
    expected = stats.ttest_ind(values[12:], values[:12]).confidence_interval(0.95)
    difference = point.difference
    half = (expected.high - expected.low) / 2

    assert difference.value == pytest.approx(values[12:].mean() - values[:12].mean())
    assert difference.high - difference.value == pytest.approx(WIDENING * half)
    assert difference.low < 8 < difference.high
    assert difference.n == 12


def test_the_weakest_candidate_goes_first() -> None:
    """What is left is tested with the longer segments."""
    values = noise(40)
    values[20:] += 1.6
    values[30:] += 8

    assert 30 in starts(values)
    assert set(starts(values)) <= set(candidates(values))


def test_too_few_values_are_refused() -> None:
    """The message says how many it takes."""
    with pytest.raises(
        errors.ResultsError, match=r"^7 values are too few .* at least 8: measure more"
    ):
        change_points([0.0] * (FEWEST - 1))


def test_values_that_are_not_finite_are_refused() -> None:
    """They have no mean."""
    with pytest.raises(errors.ResultsError, match=r"all must be finite; leave out"):
        change_points([0.0] * FEWEST + [math.nan])
