"""The probability that one more run of a case is better than one of another.

Mann and Whitney's estimate (1947): the share of pairs of runs, one of each case, in
which the first is better; ties count half. 0.5 says that neither is. It needs no scale
and no model of the results, and one run that fails counts as one.

The interval is Newcombe's (2006, method 5): it contains the probabilities from which
the estimate is not farther than t standard errors, with the variance of Hanley and
McNeil (1982) at each such probability. So it stays within 0 and 1, and has a width
where all pairs agree. t is Student's with m + n - 2 degrees of freedom where Newcombe
has the normal quantile: of two equal cases with 3 runs each, all pairs agree by chance
in one study of ten, which must not count as evidence. Measured coverage of nominal
95 % intervals for runs of one normal distribution each, apart by d standard deviations
(20,000 simulated studies; tests/statistics repeats a smaller version):

===============  =====  =====  =====  ======  ======
runs of each     n = 3  n = 5  n = 8  n = 10  n = 20
===============  =====  =====  =====  ======  ======
d = 0             1.00   0.99   0.97    0.96    0.96
d = 1             0.99   0.98   0.98    0.97    0.96
d = 2             0.97   0.97   0.97    0.97    0.97
===============  =====  =====  =====  ======  ======

Fewer than ``FEWEST_RUNS`` runs of either case get no interval.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
FEWEST_RUNS = 3
_ABOVE_0, _BELOW_1 = 1e-9, 1 - 1e-9

METHOD = "share of better pairs of runs (Mann-Whitney), Newcombe's interval"
TOO_FEW = f"no interval: fewer than {FEWEST_RUNS} runs say too little about the spread"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Improvement:
    """How probably a run of the first case is better than one of the second.

    Attributes:
      value: From 0 to 1; 0.5 says that neither is better.
      low: Lower end of the interval, or None where there is none.
      high: Upper end of the interval, or None where there is none.
      num_first: Runs of the first case.
      num_second: Runs of the second case.
      method: How the interval was computed, or why there is none.
      confidence: Nominal coverage.
    """

    value: float
    low: float | None
    high: float | None
    num_first: int
    num_second: int
    method: str
    confidence: float = CONFIDENCE


def probability(
    first: Sequence[float], second: Sequence[float], *, is_higher_better: bool
) -> Improvement:
    """Returns the probability that a run of ``first`` is better.

    Args:
      first: The result of each run, such as those with more replicas.
      second: The same of the case that it is compared with.
      is_higher_better: Whether larger results are better.

    Raises:
      ResultsError: No runs, or a result that is not finite.
    """
    a, b = _checked("first", first), _checked("second", second)
    if not is_higher_better:
        a, b = -a, -b
    better = (a[:, None] > b).sum() + 0.5 * (a[:, None] == b).sum()
    value = float(better) / (a.size * b.size)
    if min(a.size, b.size) < FEWEST_RUNS:
        low, high, method = None, None, TOO_FEW
    else:
        low, high = _ends(value, a.size, b.size)
        method = METHOD
    return Improvement(
        value=value,
        low=low,
        high=high,
        num_first=a.size,
        num_second=b.size,
        method=method,
    )


def _ends(value: float, m: int, n: int) -> tuple[float, float]:
    """Where the estimate is t standard errors away from the probability."""
    from scipy import optimize, special

    quantile = float(special.stdtrit(m + n - 2, (1 + CONFIDENCE) / 2))

    def distance(truth: float) -> float:
        others = (m + n) / 2 - 1
        factor = 1 + others * ((1 - truth) / (2 - truth) + truth / (1 + truth))
        variance = truth * (1 - truth) * factor / (m * n)
        return abs(value - truth) - quantile * math.sqrt(variance)

    # At 0 and 1 the variance is 0: an end is never there unless the estimate is.
    low = 0.0 if value == 0 else optimize.brentq(distance, 0.0, min(value, _BELOW_1))
    high = 1.0 if value == 1 else optimize.brentq(distance, max(value, _ABOVE_0), 1.0)
    return float(low), float(high)


def _checked(name: str, values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise errors.ResultsError(
            f"{name} has the results {list(values)!r}, must be one or more finite "
            "numbers; runs that failed must be left out, and reported"
        )
    return array
