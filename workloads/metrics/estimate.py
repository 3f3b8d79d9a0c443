"""A figure with unit, count and interval, or the reason why it has no interval."""

from __future__ import annotations

import dataclasses
import functools
import math

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One figure of quality.

    Attributes:
      name: Name, such as ``fid``.
      value: The figure.
      unit: Its unit; the scores of this package have the unit ``1``.
      num_examples: n, the number of generated examples.
      low: Lower end of the interval, or None where there is none.
      high: Upper end of the interval, or None where there is none.
      method: How the interval was computed, or why there is none.
      confidence: Nominal coverage of the interval.
    """

    name: str
    value: float
    unit: str
    num_examples: int
    low: float | None
    high: float | None
    method: str
    confidence: float = CONFIDENCE

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None


def normal_quantile() -> float:
    """Returns the half width of a normal interval in standard errors."""
    from scipy import special  # a tenth of the import time of scipy.stats

    return float(special.ndtri(0.5 + CONFIDENCE / 2))


@functools.lru_cache(maxsize=64)
def student_quantile(degrees_of_freedom: int) -> float:
    """Returns the same for Student's t."""
    from scipy import special

    return float(special.stdtrit(degrees_of_freedom, 0.5 + CONFIDENCE / 2))


def estimate(
    name: str,
    value: float,
    half_width: float | None,
    *,
    num_examples: int,
    method: str,
) -> Estimate:
    """Returns a score with a symmetric interval, or without one.

    Args:
      name: Name of the score.
      value: The score.
      half_width: Half width of the interval, or None.
      num_examples: Number of generated examples.
      method: How the interval was computed, or why there is none.

    Raises:
      ValueError: The value or the half width is not finite.
    """
    if not math.isfinite(value + (half_width or 0.0)):
        raise ValueError(
            f"{name} is {value!r} with half width {half_width!r}: scores are finite; "
            "check the features for overflow"
        )
    return Estimate(
        name=name,
        value=value,
        unit="1",
        num_examples=num_examples,
        low=None if half_width is None else value - half_width,
        high=None if half_width is None else value + half_width,
        method=method,
    )
