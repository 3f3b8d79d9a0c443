"""Quality figures of metrics, with their intervals."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.metrics.estimate import CONFIDENCE as _CONFIDENCE
from workloads.metrics.estimate import student_quantile
from workloads.spec import QualityMetric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workloads.spec import Metric

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


def of_examples(
    metrics: Sequence[Metric], batches: Iterable[tuple[Any, ...]]
) -> tuple[QualityMetric, ...]:
    """Returns what was learned, from the value of each example."""
    parts: dict[str, list[np.ndarray]] = {metric.name: [] for metric in metrics}
    for batch in batches:
        for metric in metrics:
            assert metric.of is not None
            parts[metric.name].append(np.asarray(metric.of(*batch)))
    found = []
    for metric in metrics:
        values = np.concatenate(parts[metric.name])
        if values.dtype == bool:
            found.append(accuracy(metric, int(values.sum()), len(values)))
        else:
            found.append(mean(metric, values.tolist()))
    return tuple(found)


def mean(metric: Metric, values: Sequence[float]) -> QualityMetric:
    """Returns the mean of a sample with its 95 % interval by Student's t."""
    count = len(values)
    if count < _FEWEST:
        raise ValueError(
            f"mean got {count} value(s) of {metric.name!r}: an interval needs at least"
            " 2"
        )
    centre = statistics.fmean(values)
    spread = statistics.stdev(values) / math.sqrt(count)
    half_width = student_quantile(count - 1) * spread
    return _measured(
        metric,
        centre,
        (centre - half_width, centre + half_width),
        num_examples=count,
        method="Student's t interval of the mean",
    )


def mean_over_groups(
    metric: Metric, values: np.ndarray, groups: np.ndarray
) -> QualityMetric:
    """Returns the mean of values that are alike within groups, with its 95 % interval.

    The groups are the sample: their sums vary independently, not the values. The
    standard error is that of a ratio of two sums over groups (Cochran 1977, section
    2.11), so large groups count for more, as in the mean.
    """
    _, index = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(index, weights=values), np.bincount(index)
    count = len(sizes)
    if count < _FEWEST:
        raise ValueError(
            f"mean_over_groups got {count} group(s) of {metric.name!r}: an interval "
            "needs at least 2"
        )
    centre = float(values.mean())
    residuals = sums - centre * sizes
    variance = float((residuals**2).sum()) * count / (count - 1) / len(values) ** 2
    half_width = student_quantile(count - 1) * math.sqrt(variance)
    return _measured(
        metric,
        centre,
        (centre - half_width, centre + half_width),
        num_examples=count,
        method=f"Student's t interval over groups of the {len(values)} examples",
    )


def counted(metric: Metric, value: float, *, num_examples: int) -> QualityMetric:
    """Returns a figure that was counted, not estimated; its interval is a point."""
    return _measured(
        metric,
        value,
        (value, value),
        num_examples=num_examples,
        method="counted, not estimated",
    )


def accuracy(metric: Metric, num_correct: int, num_examples: int) -> QualityMetric:
    """Returns the fraction of correct answers with its 95 % Wilson interval."""
    return _measured(
        metric,
        num_correct / num_examples,
        wilson_interval(num_correct, num_examples),
        num_examples=num_examples,
        method="Wilson score interval",
    )


def _measured(
    metric: Metric,
    value: float,
    ends: tuple[float, float],
    *,
    num_examples: int,
    method: str,
) -> QualityMetric:
    return QualityMetric(
        name=metric.name,
        value=value,
        unit=metric.unit,
        num_examples=num_examples,
        low=ends[0],
        high=ends[1],
        confidence=_CONFIDENCE,
        method=method,
    )
