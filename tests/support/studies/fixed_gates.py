"""Verdicts of ``judge.judge`` by calculation: one case, a fixed number of generations.

Given the measured standard deviation, the mean of normal log slowdowns is normal and
each verdict is an interval of it; the standard deviation follows a chi distribution,
over which the probability is averaged.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from results.statistics import estimates

_NUM_NODES = 4000  # the error of a probability is below 1e-3, also where it jumps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares:
    """The probability of each verdict; improve is a part of pass."""

    passes: float
    improves: float
    regresses: float
    inconclusive: float


def shares(
    spread: float,
    num_generations: int,
    effect: float,
    *,
    delta: float = 0.05,
    of_passing: float = 0.05,
    of_regressing: float = 0.05,
) -> Shares:
    """Returns the probabilities at one true slowdown, at a level for either verdict."""
    degrees = num_generations - 1
    tails = 1 - (np.arange(_NUM_NODES) + 0.5) / _NUM_NODES
    deviations = np.sqrt(special.chdtri(degrees, tails) / degrees)
    error = spread / math.sqrt(num_generations)
    upper, lower = (
        estimates.student_quantile(degrees, confidence=1 - 2 * level)
        * error
        * deviations
        for level in (of_passing, of_regressing)
    )
    limit, centre = math.log1p(delta), math.log1p(effect)

    def below(ends: np.ndarray) -> float:
        """Probability that the measured mean is below an end."""
        return float(special.ndtr((ends - centre) / error).mean())

    passes = below(limit - upper)
    # low > 0 and high >= limit: the mean is above both ends.
    regresses = 1 - below(np.maximum(lower, limit - upper))
    return Shares(
        passes=passes,
        improves=below(-lower),
        regresses=regresses,
        inconclusive=max(0.0, 1 - passes - regresses),
    )
