"""Change points of a series: where the mean of its values moved, and whether it did.

The method is penalized least squares: the partition of the series into segments of at
least two values that minimizes

    sum of squared deviations from the means of segments + PENALTY * s^2 * changes

found exactly by PELT (Killick, Fearnhead and Eckley, "Optimal detection of changepoints
with a linear computational cost", JASA 107, 2012), as ``ruptures`` implements it
(Truong, Oudre and Vayatis, "Selective review of offline change point detection
methods", Signal Processing 167, 2020). s^2 is half the mean squared difference of
neighbours (von Neumann, 1941), which a change of the mean hardly moves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from results import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

PENALTY: Final = 10.5
"""Squared deviations, in units of s^2, that a change must explain.

Chosen by simulation so that 5 % of series without a change, of 8 to 200 values with
independent normal noise, show one (``tests/statistics/test_change_points.py``).
"""

FEWEST: Final = 8
"""Values below which s^2 is too uncertain: not even a large change would be found."""

_SMALLEST_SEGMENT = 2
"""A single value that deviates is an outlier, not a change."""


def change_points(values: Sequence[float]) -> tuple[int, ...]:
    """Returns the indices at which a new segment begins, ascending; often none.

    Args:
      values: In order of time, at least ``FEWEST``.

    Raises:
      ResultsError: Too few values, or one that is not finite.
    """
    if len(values) < FEWEST:
        raise errors.ResultsError(
            f"{len(values)} values are too few for a change point, must be at least "
            f"{FEWEST}: measure more studies"
        )
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise errors.ResultsError(
            f"values hold {values!r}, all must be finite; leave out what failed"
        )
    deviation = math.sqrt(float(np.mean(np.diff(array) ** 2)) / 2)
    if not deviation:
        return ()
    # Imported here: it takes a second, which other verbs need not pay.
    from ruptures import KernelCPD

    # A linear kernel is least squares, in compiled code.
    algorithm = KernelCPD(kernel="linear", min_size=_SMALLEST_SEGMENT)
    standard = (array - array.mean()) / deviation
    *changes, _ = algorithm.fit(standard.reshape(-1, 1)).predict(pen=PENALTY)
    return tuple(int(change) for change in changes)
