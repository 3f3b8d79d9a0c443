"""The second computation of figures gives what the first one does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from results.statistics import generations, repetitions
from results.verify import recomputed

if TYPE_CHECKING:
    from results.statistics.estimates import Estimate

FIGURES = 1e-12
# The half width over unpaired groups is drawn twice, 20,000 and 200,000 times.
DRAWN = 0.03


def same(stated: Estimate, found: Any, tolerance: float = FIGURES) -> bool:
    """Whether two figures are equal."""
    pairs = [(stated.value, found.value), (stated.low, found.low)]
    pairs.append((stated.high, found.high))
    return stated.n == found.n and all(
        one is other
        if None in (one, other)
        else math.isclose(one, other, rel_tol=tolerance)
        for one, other in pairs
    )


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_repetitions(number: int) -> None:
    """Geometric mean and Student's interval."""
    values = list(np.random.default_rng(number).lognormal(3, 0.2, number))

    assert same(
        repetitions.geometric_mean(values, unit=""), recomputed.of_values(values)
    )


@pytest.mark.parametrize("number", [1, 3, 4, 5, 19, 20, 23, 150, 1000])
def test_one_generation(number: int) -> None:
    """Batches of consecutive rounds."""
    logs = list(np.random.default_rng(number).normal(0, 0.1, number))
    found = recomputed._of_generations([logs])

    assert same(generations.these_processes_only(logs), found)


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.2])
def test_intervals_that_rounds_or_generations_decide(spread: float) -> None:
    """Generations of unlike numbers of rounds."""
    generator = np.random.default_rng(9)
    logs = [
        list(generator.normal(generator.normal(0, spread), 0.1, number))
        for number in (1, 5, 9, 20)
    ]

    assert same(generations.over_rounds(logs), recomputed._of_generations(logs))


@pytest.mark.parametrize("number", [2, 5, 6, 12])
def test_generations_that_stopped_on_width(number: int) -> None:
    """Widened from six on."""
    logs = list(np.random.default_rng(number).normal(0, 0.1, number))
    plain = recomputed.over_repetitions(logs)
    stated = generations.over_generations(logs, is_stopped_on_width=True)

    assert same(generations.over_generations(logs), plain)
    assert same(stated, plain.widened() if "widened" in stated.method else plain)
    assert ("widened" in stated.method) == (number > 5)


def test_ratios() -> None:
    """In pairs where both have the same repetitions, and as groups where not."""
    generator = np.random.default_rng(2)
    first = dict(enumerate(generator.lognormal(3, 0.05, 4)))
    second = dict(enumerate(generator.lognormal(2, 0.05, 4)))
    third = dict(enumerate(generator.lognormal(2, 0.08, 3)))

    def rates(values: dict[int, float]) -> dict[int, dict[int, float]]:
        return {key: {0: value} for key, value in values.items()}

    for other in (second, third):
        found = recomputed.ratio(rates(first), rates(other), is_relay=False)
        assert found is not None
        assert found.is_drawn == (other is third)
        stated = repetitions.ratio(first, other)
        assert same(stated, found, DRAWN if found.is_drawn else FIGURES)
    one = recomputed.ratio(rates(first), rates({9: 2.0}), is_relay=False)
    assert same(repetitions.ratio(first, {9: 2.0}), one)
    assert recomputed.ratio(rates(first), {}, is_relay=False) is None


def test_rounds_that_both_have() -> None:
    """Of generations that have any."""
    first = {0: {0: 2.0, 1: 4.0, 2: 9.0}, 1: {0: 3.0}, 2: {5: 1.0}}
    second = {0: {0: 1.0, 1: 1.0}, 1: {0: 1.5}, 2: {6: 1.0}}
    found = recomputed.ratio(first, second, is_relay=True)
    logs = [[math.log(2), math.log(4)], [math.log(2)]]

    assert same(generations.over_rounds(logs), found)
    assert recomputed.ratio({0: {0: 1.0}}, {0: {1: 1.0}}, is_relay=True) is None
