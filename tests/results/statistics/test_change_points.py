"""A change of the mean is found where it is; outliers and constants have none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from results import errors
from results.statistics.change_points import (
    FEWEST,
    PENALTY,
    change_points,
)


def noise(length: int, seed: int = 3) -> np.ndarray:
    """Returns independent normal numbers."""
    return np.random.default_rng(seed).standard_normal(length)


def test_a_step_is_found_where_it_is() -> None:
    """Ten values, then ten that are eight deviations higher."""
    values = noise(20)
    values[10:] += 8

    assert change_points(list(values)) == (10,)


def test_two_changes_are_found() -> None:
    """Up, and down again."""
    values = noise(30)
    values[8:19] += 8

    assert change_points(list(values)) == (8, 19)


def test_a_single_outlier_is_no_change() -> None:
    """One study on a disturbed machine."""
    values = noise(20)
    values[9] -= 30

    assert change_points(list(values)) == ()


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
    assert min(partitions, key=cost) == change_points(list(values)) == (4,)


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
