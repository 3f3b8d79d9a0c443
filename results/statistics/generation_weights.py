"""How much each generation of a gate counts: less where all cases were disturbed.

In some generations something is wrong with the machine: every case of it is far from
what it is in others, to either side. One of them widens every interval for the rest of
the gate. The deviations of all cases together show it, although of each case they are
few numbers.

With z the deviation of a case from its median over generations, in robust standard
deviations of all, and q the square of the mean of abs(z) over the cases of a
generation, its weight is (a + 1) / (a + q). It does not regard signs, so equal programs
are as often slower as faster, whatever is left out. What single processes do is judged
without weights, and so are sustained stretches.
"""

from __future__ import annotations

from typing import Final

import numpy as np

FEWEST_GENERATIONS: Final = 4
"""Of three, one that differs from two that agree by chance would count least."""
FEWEST_CASES: Final = 3
"""Fewer do not show whether a case or a generation is off."""
SOFTNESS: Final = 2.0
"""``a``. With 1 and 0.5 more gates with a spoilt generation pass, and equal programs
regress more often where cases have unlike spreads (``make statistics``)."""
NORMAL_DEVIATION: Final = 1.4826  # of the median absolute deviation


def weights(values: np.ndarray) -> np.ndarray:
    """Returns the weight of each generation, the same for all of its cases.

    Args:
      values: Log slowdowns; the last axes are generations and cases.

    Returns:
      Positive numbers, with one case in the last axis; all 1 where there are too few
      generations or cases, or one has no number.
    """
    num_generations, num_cases = values.shape[-2:]
    if (
        num_generations < FEWEST_GENERATIONS
        or num_cases < FEWEST_CASES
        or np.isnan(values).any()
    ):
        return np.ones((*values.shape[:-1], 1))
    away = np.abs(values - np.median(values, axis=-2, keepdims=True))
    scale = NORMAL_DEVIATION * np.median(away, axis=(-2, -1), keepdims=True)
    apart = away / np.maximum(scale, np.finfo(np.float64).tiny)
    squares = apart.mean(axis=-1, keepdims=True) ** 2
    found: np.ndarray = (SOFTNESS + 1) / (SOFTNESS + squares)
    return found
