"""Change points of a series: where the mean of its values moved, and whether it did.

Candidates are those of penalized least squares: the partition of the series into
segments of at least two values that minimizes

    sum of squared deviations from the means of segments + PENALTY * s^2 * changes

found exactly by PELT (Killick, Fearnhead and Eckley, "Optimal detection of changepoints
with a linear computational cost", JASA 107, 2012), as ``ruptures`` implements it
(Truong, Oudre and Vayatis, "Selective review of offline change point detection
methods", Signal Processing 167, 2020). s^2 is half the mean squared difference of
neighbours (von Neumann, 1941), which a change of the mean hardly moves.

A series is looked at after every study, and a candidate is the most striking of many
places. So a candidate counts only if Student's t test of the two segments beside it has
a p-value of at most ``LEVEL``; the weakest candidate is taken out first, and its two
segments become one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from results import errors
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Sequence

PENALTY: Final = 10.5
"""Squared deviations, in units of s^2, that a candidate must explain."""

LEVEL: Final = 1e-4
"""Largest p-value of a change.

Chosen by simulation so that a series without a change, of independent normal noise, has
at most 0.1 false alarms within 100 values where it is looked at after each
(``tests/statistics/test_change_points.py``).
"""

FEWEST: Final = 8
"""Values below which s^2 is too uncertain: not even a large change would be found."""

WIDENING: Final = 1.25
"""By which the interval of a change is widened: where a change is and that it is shown
were chosen by its size. By simulation it then holds the truth in at least 0.93."""

_SMALLEST_SEGMENT = 2
"""A single value that deviates is an outlier, not a change."""

METHOD = (
    "Student's t of the means of two segments, widened by 25 % since place and size"
    " were chosen from the same values"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A place where the mean moved.

    Attributes:
      start: Index of the first value after it.
      difference: Mean of the segment that begins there less that of the one before.
    """

    start: int
    difference: estimates.Estimate


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Returns where new segments begin, ascending; often none.

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
    starts = list(candidates(array))
    while starts:
        means = [_difference(array, *around) for around in _around(starts, array.size)]
        p_values = [mean.p_value() or 0.0 for mean in means]
        weakest = max(range(len(starts)), key=p_values.__getitem__)
        if p_values[weakest] <= LEVEL:
            return tuple(
                ChangePoint(
                    start=start, difference=mean.estimate(METHOD, widening=WIDENING)
                )
                for start, mean in zip(starts, means, strict=True)
            )
        del starts[weakest]
    return ()


def candidates(values: np.ndarray) -> tuple[int, ...]:
    """Returns the starts of the segments of the best partition."""
    deviation = math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2)
    if not deviation:
        return ()
    # Imported here: it takes a second, which other verbs need not pay.
    from ruptures import KernelCPD

    # A linear kernel is least squares, in compiled code.
    algorithm = KernelCPD(kernel="linear", min_size=_SMALLEST_SEGMENT)
    standard = (values - values.mean()) / deviation
    *found, _ = algorithm.fit(standard.reshape(-1, 1)).predict(pen=PENALTY)
    return tuple(int(start) for start in found)


def _around(starts: Sequence[int], size: int) -> list[tuple[int, int, int]]:
    """Returns begin of the segment before, start, and end of that after, of each."""
    ends = [0, *starts, size]
    return list(zip(ends, ends[1:], ends[2:], strict=False))


def _difference(values: np.ndarray, begin: int, start: int, end: int) -> estimates.Mean:
    """Returns the difference of two segments, which share one spread."""
    before, after = values[begin:start], values[start:end]
    degrees = end - begin - 2
    squares = sum(float(((of - of.mean()) ** 2).sum()) for of in (before, after))
    return estimates.Mean(
        centre=float(after.mean() - before.mean()),
        standard_error=math.sqrt(
            squares / degrees * (1 / before.size + 1 / after.size)
        ),
        degrees_of_freedom=degrees,
        n=min(before.size, after.size),
    )
