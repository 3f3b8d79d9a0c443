"""Means and spreads of a gate, a second time."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BORROWED = 8.0
FEWEST_GENERATIONS, FEWEST_CASES = 4, 3  # that have weights
NORMAL_DEVIATION = 1.4826  # of the median absolute deviation


def moderated(variances: Sequence[float], degrees: Sequence[float]) -> list[Any]:
    """Returns variance and degrees of freedom of each case, with what it borrows."""
    from scipy import optimize, special

    total = sum(degrees)
    if len(variances) == 1:
        return [(variances[0], float(degrees[0]))]
    pooled = sum(d * v for d, v in zip(degrees, variances, strict=True)) / total
    logs = [
        math.log(max(v, pooled * 1e-9, 2.2250738585072014e-308))
        - float(special.digamma(d / 2))
        + math.log(d / 2)
        for d, v in zip(degrees, variances, strict=True)
    ]
    chance = statistics.fmean(float(special.polygamma(1, d / 2)) for d in degrees)
    beyond = statistics.variance(logs) - chance
    prior, common = math.inf, pooled
    if beyond > 2e-6:  # noqa: PLR2004 - a million degrees of freedom
        half = optimize.brentq(
            lambda x: float(special.polygamma(1, x)) - beyond, 1e-6, 1e7, xtol=1e-12
        )
        prior = 2 * half
        common = math.exp(
            statistics.fmean(logs) + float(special.digamma(half)) - math.log(half)
        )
    found = []
    for d, v in zip(degrees, variances, strict=True):
        weight = min(prior, MOST_BORROWED)
        mixed = (weight * common + d * v) / (weight + d)
        found.append((mixed, min(d + weight, float(total))))
    return found


def weights(cases: Sequence[Sequence[float]]) -> list[float]:
    """Returns the weight of each generation, of cases that all have it."""
    if len(cases) < FEWEST_CASES or len(cases[0]) < FEWEST_GENERATIONS:
        return []
    away = [[abs(v - statistics.median(of)) for v in of] for of in cases]
    usual = NORMAL_DEVIATION * statistics.median(itertools.chain.from_iterable(away))
    found = []
    for generation in zip(*away, strict=True):
        apart = statistics.fmean(generation) / max(usual, 2.2250738585072014e-308)
        found.append(3 / (2 + apart**2))
    return found


def moments(
    values: Sequence[float], counts: Sequence[float]
) -> tuple[float, float, float]:
    """Returns mean, variance and number of values that do not count equally."""
    total = math.fsum(counts)
    number = max(total**2 / math.fsum(c**2 for c in counts), 2.0)
    mean = math.fsum(c * v for c, v in zip(counts, values, strict=True)) / total
    squares = math.fsum(
        c * (v - mean) ** 2 for c, v in zip(counts, values, strict=True)
    )
    return mean, squares / total * number / (number - 1), number
