"""Quality figures of metrics, with their intervals."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.spec import QualityMetric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workloads.spec import Metric

CONFIDENCE = 0.95
_FEWEST = 2  # values needed for a spread


def normal_quantile() -> float:
    """Returns the half width of a normal interval in standard errors."""
    return statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


def student_quantile(degrees_of_freedom: int) -> float:
    """Returns the same for Student's t."""
    from scipy import special  # a tenth of the import time of scipy.stats

    return float(special.stdtrit(degrees_of_freedom, 0.5 + CONFIDENCE / 2))


def example_metrics(
    metrics: Sequence[Metric], batches: Iterable[tuple[Any, ...]]
) -> tuple[QualityMetric, ...]:
    """Returns means of the values of examples; fractions have Wilson's interval."""
    from scipy import stats  # half a second

    functions = [metric.of for metric in metrics if metric.of is not None]
    by_batch = [[of(*batch) for of in functions] for batch in batches]
    figures = []
    for metric, parts in zip(metrics, zip(*by_batch, strict=True), strict=True):
        values = np.concatenate(parts)
        if values.dtype == bool:
            counted = stats.binomtest(int(values.sum()), len(values))
            low, high = counted.proportion_ci(CONFIDENCE, method="wilson")
            share, method = (values.mean(), low, high), "Wilson score interval"
            figures.append(figure(metric.name, metric.unit, share, len(values), method))
        else:
            figures.append(mean(metric, values))
    return tuple(figures)


def mean(
    metric: Metric,
    values: Sequence[float] | np.ndarray,
    groups: np.ndarray | None = None,
) -> QualityMetric:
    """Returns the mean of a sample with its 95 % interval by Student's t.

    Where values are alike within groups, the groups are the sample: their sums vary
    independently, not the values. The standard error is that of a ratio of two sums
    over groups (Cochran 1977, section 2.11), so large groups count for more, as in the
    mean.
    """
    values = np.asarray(values, np.float64)
    index, kind = np.arange(len(values)), "value(s)"
    method = "Student's t interval of the mean"
    if groups is not None:
        index, kind = np.unique(groups, return_inverse=True)[1], "group(s)"
        method = f"Student's t interval over groups of the {len(values)} examples"
    sums, sizes = np.bincount(index, weights=values), np.bincount(index)
    count = len(sizes)
    if count < _FEWEST:
        raise ValueError(
            f"mean got {count} {kind} of {metric.name!r}: an interval needs at least 2"
        )
    centre = float(values.mean())
    residuals = sums - centre * sizes
    variance = float((residuals**2).sum()) * count / (count - 1) / len(values) ** 2
    half_width = student_quantile(count - 1) * math.sqrt(variance)
    ends = centre - half_width, centre + half_width
    return figure(metric.name, metric.unit, (centre, *ends), count, method)


def counted(metric: Metric, value: float, *, num_examples: int) -> QualityMetric:
    """Returns a figure that was counted, not estimated; its interval is a point."""
    method = "counted, not estimated"
    return figure(metric.name, metric.unit, (value,) * 3, num_examples, method)


def figure(
    name: str, unit: str, interval: Sequence[float], count: int, method: str
) -> QualityMetric:
    """Returns a value with the ends of its interval, and how it was made."""
    value, low, high = map(float, interval)
    return QualityMetric(
        name=name,
        value=value,
        unit=unit,
        num_examples=count,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        method=method,
    )
