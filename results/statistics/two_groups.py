"""Two groups of generations that were not measured in the same rounds.

Two studies share no rounds, so nothing that happens to the machine cancels: the spread
of both groups is in the interval. Welch's t, since the groups need not have the same
spread: Welch, "The generalization of Student's problem when several different
population variances are involved" (Biometrika 34, 1947), with the degrees of freedom of
Satterthwaite (Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from results import errors
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.statistics.estimates import Estimate

METHOD = (
    "Welch's t over the generations of two studies, which were not measured in the "
    "same rounds"
)
FEWEST = estimates.FEWEST_FOR_INTERVAL


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """The difference of the means of two groups of logarithms.

    Attributes:
      centre: mean(first) - mean(second).
      standard_error: Of ``centre``.
      degrees_of_freedom: Of its t distribution; not an integer.
      n: Generations of the smaller group.
    """

    centre: float
    standard_error: float
    degrees_of_freedom: float
    n: int

    def half_width(self, confidence: float = estimates.CONFIDENCE) -> float:
        """Returns half the interval of ``centre``."""
        from scipy import special

        if self.standard_error == 0:
            return 0.0
        tail = (1 + confidence) / 2
        quantile = float(special.stdtrit(self.degrees_of_freedom, tail))
        return quantile * self.standard_error

    def estimate(self, confidence: float = estimates.CONFIDENCE) -> Estimate:
        """Returns exp(centre) with its interval."""
        return estimates.from_logs(
            self.centre,
            self.half_width(confidence),
            n=self.n,
            unit="",
            method=METHOD,
            confidence=confidence,
        )

    def p_value(self) -> float:
        """Returns the two-sided p-value of the test that ``centre`` is 0."""
        from scipy import special

        if self.standard_error == 0:
            return 1.0 if self.centre == 0 else 0.0
        statistic = -abs(self.centre) / self.standard_error
        return 2 * float(special.stdtr(self.degrees_of_freedom, statistic))


def shift(first: Sequence[float], second: Sequence[float]) -> Shift:
    """Compares two groups of logarithms, one number per generation.

    Raises:
      ResultsError: A group of fewer than two generations, or a number that is not
        finite.
    """
    for name, group in (("first", first), ("second", second)):
        if len(group) < FEWEST:
            raise errors.ResultsError(
                f"the {name} group has {len(group)} generation(s), a comparison of two "
                f"studies needs {FEWEST} or more of each: one says nothing about the "
                "spread between processes; measure longer"
            )
    here = estimates.finite_logs(first, "first")
    there = estimates.finite_logs(second, "second")
    part_here = float(here.var(ddof=1)) / here.size
    part_there = float(there.var(ddof=1)) / there.size
    total = part_here + part_there
    degrees = 1.0
    if total > 0:
        degrees = total**2 / (
            part_here**2 / (here.size - 1) + part_there**2 / (there.size - 1)
        )
    return Shift(
        centre=float(here.mean() - there.mean()),
        standard_error=math.sqrt(total),
        degrees_of_freedom=degrees,
        n=min(here.size, there.size),
    )
