"""An estimate: a value with its interval, and Student's t, from which most come.

Every figure with an uncertainty is an ``Estimate``. Its interval is over what is
repeated (trials, generations, seeds), never over steps, and covers the truth in 95 % of
studies by itself, not together with others.

``one_group`` is Student's t (Student 1908). ``two_groups`` is Welch's, for groups that
share no rounds and need not have the same spread: Welch, "The generalization of
Student's problem when several different population variances are involved" (Biometrika
34, 1947), with the degrees of freedom of Satterthwaite (Biometrics Bulletin 2, 1946).
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
FEWEST_FOR_INTERVAL = 2
_LARGEST_LOGARITHM = 690.0  # e**690 is 1e299


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure with its uncertainty.

    Attributes:
      value: A mean, a geometric mean, a ratio, a share, a median; infinite where it is
        beyond what was measured.
      low: Lower end of the interval, or None where there is none.
      high: Upper end of the interval, or None where there is none.
      n: Number of repetitions; of the smaller group if there are two.
      unit: Unit of the three numbers; empty for a ratio.
      method: How the interval was computed, or why there is none.
      confidence: Nominal coverage of the interval.
      is_conclusive: Whether the interval holds for other processes too. Where it does
        not, it is shown and never judged: it excludes nothing.
      is_disturbed: Whether all of it was measured beside load of others.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    unit: str
    method: str
    confidence: float = CONFIDENCE
    is_conclusive: bool = True
    is_disturbed: bool = False

    @property
    def has_interval(self) -> bool:
        """Whether there are enough repetitions for an interval."""
        return self.low is not None

    def excludes(self, value: float) -> bool:
        """Whether there is an interval that may be judged, and not around ``value``."""
        if not self.is_conclusive or self.low is None or self.high is None:
            return False
        return not self.low <= value <= self.high

    def scaled(self, factor: float, unit: str = "") -> Estimate:
        """Returns the estimate times a positive constant, in another unit."""
        return dataclasses.replace(
            self,
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
            unit=unit,
        )


def from_logs(found: Estimate) -> Estimate:
    """Returns exp of an estimate of a mean logarithm."""
    return dataclasses.replace(
        found,
        value=_exp(found.value),
        low=None if found.low is None else _exp(found.low),
        high=None if found.high is None else _exp(found.high),
    )


def _exp(logarithm: float) -> float:
    """Returns exp(x); two very different repetitions can exceed the range of floats."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def student_quantile(
    degrees_of_freedom: float, *, confidence: float = CONFIDENCE
) -> float:
    """Returns the half width of Student's t interval in standard errors."""
    from scipy import special  # a tenth of the import time of scipy.stats

    tail = 1 - (1 - confidence) / 2
    return float(special.stdtrit(degrees_of_freedom, tail))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean, or the difference of two, whose error has Student's distribution."""

    centre: float  # The mean.
    # Of ``centre``; None where one value says nothing about the spread.
    standard_error: float | None
    degrees_of_freedom: float  # Of the distribution; not an integer for two groups.
    n: int  # Values; of the smaller group if there are two.
    # The same mean by another estimate of its error; intervals are not narrower than
    # its own, and p-values not smaller.
    least: Mean | None = None

    def widened(self, factor: float) -> Mean:
        """Returns the same with a larger error, in its interval and in its test."""
        if self.standard_error is None:
            return self
        return dataclasses.replace(
            self,
            standard_error=factor * self.standard_error,
            least=None if self.least is None else self.least.widened(factor),
        )

    def half_width(self, confidence: float = CONFIDENCE) -> float | None:
        """Returns half the interval, or None where there is none."""
        if self.standard_error is None:
            return None
        quantile = student_quantile(self.degrees_of_freedom, confidence=confidence)
        half = quantile * self.standard_error if self.standard_error else 0.0
        least = None if self.least is None else self.least.half_width(confidence)
        return half if least is None else max(half, least)

    def estimate(
        self,
        method: str,
        *,
        otherwise: str = "",
        unit: str = "",
        confidence: float = CONFIDENCE,
        widening: float = 1.0,
    ) -> Estimate:
        """Returns the mean with its interval."""
        half = self.half_width(confidence)
        return Estimate(
            value=self.centre,
            low=None if half is None else self.centre - half * widening,
            high=None if half is None else self.centre + half * widening,
            n=self.n,
            unit=unit,
            method=otherwise if half is None else method,
            confidence=confidence,
        )

    def p_value(self) -> float | None:
        """Returns the two-sided p-value of the test that the mean is 0, or None."""
        from scipy import special

        if self.standard_error is None:
            return None
        least = None if self.least is None else self.least.p_value()
        if self.standard_error == 0:
            own = 1.0 if self.centre == 0 else 0.0
        else:
            statistic = -abs(self.centre) / self.standard_error
            own = 2 * float(special.stdtr(self.degrees_of_freedom, statistic))
        return own if least is None else max(own, least)


def one_group(values: Sequence[float] | np.ndarray, name: str = "values") -> Mean:
    """Returns the mean of values that do not depend on each other."""
    array = finite(values, name)
    error = None
    if array.size >= FEWEST_FOR_INTERVAL:
        error = float(array.std(ddof=1)) / math.sqrt(array.size)
    return Mean(
        centre=float(array.mean()),
        standard_error=error,
        degrees_of_freedom=array.size - 1,
        n=array.size,
    )


def two_groups(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray
) -> Mean:
    """Returns mean(first) - mean(second) of groups that are not paired."""
    here, there = finite(first, "first"), finite(second, "second")
    n = min(here.size, there.size)
    centre = float(here.mean() - there.mean())
    if n < FEWEST_FOR_INTERVAL:
        return Mean(centre=centre, standard_error=None, degrees_of_freedom=0, n=n)
    part_here = float(here.var(ddof=1)) / here.size
    part_there = float(there.var(ddof=1)) / there.size
    total = part_here + part_there
    degrees = 1.0
    if total > 0:
        degrees = total**2 / (
            part_here**2 / (here.size - 1) + part_there**2 / (there.size - 1)
        )
    return Mean(
        centre=centre,
        standard_error=math.sqrt(total),
        degrees_of_freedom=degrees,
        n=n,
    )


def finite(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    """Returns numbers that may be averaged as an array."""
    array = _array(values, name)
    if not np.isfinite(array).all():
        raise errors.ResultsError(
            f"{name} holds {values!r}, all must be finite; what failed must be left "
            "out, and reported"
        )
    return array


def numbers(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    """Returns numbers that may be ordered, infinite for what failed, as an array."""
    array = _array(values, name)
    if np.isnan(array).any():
        raise errors.ResultsError(
            f"{name} holds {values!r}, none may be nan; what failed is infinitely bad"
        )
    return array


def _array(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise errors.ResultsError(
            f"{name} is {values!r}, must be a sequence of one or more numbers"
        )
    return array
