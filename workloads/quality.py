"""Quality figures from counts, with their intervals."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from workloads.spec import QualityMetric

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFIDENCE = 0.95
_FEWEST = 2  # values needed for a spread


def wilson_interval(
    num_successes: int, num_trials: int, *, confidence: float = _CONFIDENCE
) -> tuple[float, float]:
    """Returns the Wilson score interval of a proportion.

    ``(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)`` (Wilson 1927). It
    stays inside [0, 1] and keeps its coverage near 0 and 1, where the usual normal
    interval collapses.

    Args:
      num_successes: In [0, num_trials].
      num_trials: At least 1.
      confidence: Level in (0, 1).

    Returns:
      Lower and upper end, as ratios.

    Raises:
      ValueError: Counts or level out of range.
    """
    if num_trials < 1 or not 0 <= num_successes <= num_trials:
        raise ValueError(
            f"wilson_interval got {num_successes!r} successes of {num_trials!r}: "
            "trials must be at least 1 and successes between 0 and trials"
        )
    if not 0.0 < confidence < 1.0:
        raise ValueError(
            f"wilson_interval got confidence={confidence!r}: use a ratio between 0 and "
            "1, such as 0.95"
        )
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    ratio = num_successes / num_trials
    spread = z * math.sqrt(
        ratio * (1.0 - ratio) / num_trials + z**2 / (4 * num_trials**2)
    )
    centre = ratio + z**2 / (2 * num_trials)
    scale = 1.0 + z**2 / num_trials
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # At the ends the bounds are exactly 0 and 1; rounding must not exceed them.
    low = 0.0 if num_successes == 0 else low
    high = 1.0 if num_successes == num_trials else high
    return low, high


def mean(name: str, values: Sequence[float], *, unit: str) -> QualityMetric:
    """Returns the mean of a sample with its 95 % interval by Student's t.

    Args:
      name: Such as ``episode_return``.
      values: One per example, at least 2.
      unit: Of the values.

    Raises:
      ValueError: Fewer than 2 values.
    """
    count = len(values)
    if count < _FEWEST:
        raise ValueError(
            f"mean got {count} value(s) of {name!r}: an interval needs at least 2"
        )
    from scipy import special  # a tenth of the import time of scipy.stats

    centre = statistics.fmean(values)
    quantile = float(special.stdtrit(count - 1, 0.5 + _CONFIDENCE / 2))
    half_width = quantile * statistics.stdev(values) / math.sqrt(count)
    return QualityMetric(
        name=name,
        value=centre,
        unit=unit,
        num_examples=count,
        low=centre - half_width,
        high=centre + half_width,
        confidence=_CONFIDENCE,
        method="Student's t interval of the mean",
    )


def counted(name: str, value: float, *, unit: str, num_examples: int) -> QualityMetric:
    """Returns a figure that was counted, not estimated; its interval is a point.

    Args:
      name: Such as ``environment_steps_per_sec``.
      value: The figure.
      unit: Its unit.
      num_examples: Number of items that it was counted over.
    """
    return QualityMetric(
        name=name,
        value=value,
        unit=unit,
        num_examples=num_examples,
        low=value,
        high=value,
        confidence=_CONFIDENCE,
        method="counted, not estimated",
    )


def accuracy(name: str, num_correct: int, num_examples: int) -> QualityMetric:
    """Returns the fraction of correct answers with its 95 % Wilson interval.

    Args:
      name: Such as ``top_1``.
      num_correct: Correct answers.
      num_examples: All answers.
    """
    low, high = wilson_interval(num_correct, num_examples)
    return QualityMetric(
        name=name,
        value=num_correct / num_examples,
        unit="ratio",
        num_examples=num_examples,
        low=low,
        high=high,
        confidence=_CONFIDENCE,
        method="Wilson score interval",
    )
