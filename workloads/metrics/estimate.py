"""A figure with unit, count and interval, or the reason why it has no interval."""

from __future__ import annotations

import dataclasses
import functools
import math

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One figure of quality."""

    name: str  # Name, such as ``fid``.
    value: float  # The figure.
    unit: str  # Its unit; the scores of this package have the unit ``1``.
    num_examples: int  # n, the number of generated examples.
    low: float | None  # Lower end of the interval, or None where there is none.
    high: float | None  # Upper end of the interval, or None where there is none.
    method: str  # How the interval was computed, or why there is none.
    confidence: float = CONFIDENCE  # Nominal coverage of the interval.

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
    """Returns a score with a symmetric interval, or without one."""
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
