"""Quality figures of metrics, with their intervals: means and scores of features.

Fréchet and kernel distance (FID, KID) and the Inception score are without a protocol;
their ends are NaN where they have no interval, and ``method`` says why.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.spec import QualityMetric

if TYPE_CHECKING:
    from workloads.spec import Metric

CONFIDENCE = 0.95
_FEWEST = 2  # values needed for a spread
# Half the width of a normal interval in standard errors.
_NORMAL_QUANTILE = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


def student_quantile(degrees_of_freedom: int) -> float:
    """Returns the half width of an interval by Student's t in standard errors."""
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


_CHUNK_SIZE = 4096


def _estimate(
    name: str, value: float, half_width: float, *, num_examples: int, method: str
) -> QualityMetric:
    """Returns a score with a symmetric interval; none where half of it is NaN."""
    if not math.isfinite(value) or math.isinf(half_width):
        raise ValueError(
            f"{name} is {value!r} with half width {half_width!r}: scores are finite; "
            "check the features for overflow"
        )
    ends = value - half_width, value + half_width
    return figure(name, "1", (value, *ends), num_examples, method)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """The mean and the covariance of a Gaussian, float64."""

    mean: np.ndarray  # [num_features].
    covariance: np.ndarray  # Unbiased, [num_features, num_features].

    @classmethod
    def of(cls, features: Any, *, chunk_size: int = _CHUNK_SIZE) -> Moments:
        """Returns those of a sample, [examples, features], read in chunks of rows."""
        features = _check_features(features)
        if len(features) < _FEWEST:
            raise ValueError(
                "a covariance needs at least 2 examples, but Moments has "
                f"{len(features)}: add more first"
            )
        # Known before products are summed: sum(x x^T) - n mean mean^T loses all digits
        # if the mean is large relative to the spread.
        mean = features.mean(axis=0, dtype=np.float64)
        scatter = np.zeros((len(mean), len(mean)))
        for start in range(0, len(features), chunk_size):
            centred = features[start : start + chunk_size] - mean
            scatter += centred.T @ centred
        return cls(mean=mean, covariance=scatter / (len(features) - 1))

    @functools.cached_property
    def root(self) -> np.ndarray:
        """A matrix A with A A^T = covariance; what takes most of the time."""
        values, vectors = np.linalg.eigh(self.covariance)
        # Rounding error of a zero eigenvalue; its root would be 1e8 times that.
        noise = len(values) * np.finfo(np.float64).eps * abs(values[-1])
        if values[0] < -max(noise, np.finfo(np.float64).tiny) * len(values):
            raise ValueError(
                f"covariance has the eigenvalue {float(values[0])}: those of a "
                "covariance are at least 0; was it made from features?"
            )
        roots: np.ndarray = np.sqrt(np.where(values > noise, values, 0.0))
        return vectors * roots

    def distance(self, other: Moments) -> float:
        """Returns the squared Fréchet distance of two Gaussians (Dowson & Landau 1982).

            |m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1^1/2 S2 S1^1/2)^1/2

        The last trace is the sum of the square roots of the eigenvalues of the
        symmetrised product. With S1 = A A^T and S2 = B B^T these roots are the singular
        values of A^T B, which are computed accurately: from the product itself, a zero
        eigenvalue that rounding has turned into 1e-16 adds 1e-8 to the sum.
        """
        if self.mean.shape != other.mean.shape:
            raise ValueError(
                f"features of length {len(self.mean)} and {len(other.mean)} cannot be "
                "compared: extract both with the same extractor"
            )
        overlap = np.linalg.svd(self.root.T @ other.root, compute_uv=False).sum()
        shift = self.mean - other.mean
        value = shift @ shift + np.trace(self.covariance) + np.trace(other.covariance)
        # Equal Gaussians leave the rounding error of the traces, of either sign.
        return max(float(value - 2.0 * overlap), 0.0)


def _check_features(features: Any) -> np.ndarray:
    """Returns ``features`` as an array, in its own type."""
    features = np.asarray(features)
    if features.ndim != 2 or not features.size:  # noqa: PLR2004 - rank of a matrix
        raise ValueError(
            f"features of shape {features.shape} must be [examples, features] with at "
            "least one of each: flatten or pool them first"
        )
    if not np.isfinite(features.sum(dtype=np.float64)):
        num_wrong = int((~np.isfinite(features)).any(axis=1).sum())
        raise ValueError(
            f"features of {num_wrong} of {len(features)} examples are not finite: a "
            "generator that has diverged has no score"
        )
    return features


def fid(features: np.ndarray, reference: Moments) -> QualityMetric:
    """Estimates the FID of generated examples, with its sampling error.

    The FID of n examples is larger than that of the generator, by about a constant over
    n. The interval is that of the FID of another n examples of the same generator,
    against the same reference: with g_i the derivative of the FID towards example i,

        g_i = 2 (m - m_r)^T (x_i - m) + (x_i - m)^T (1 - T) (x_i - m),
        T = B (B^T S B)^-1/2 B^T,  B B^T = S_r,

    its standard error is sd(g) / sqrt(n). There is none if n is not larger than the
    number of features, because the covariance is then singular for any generator.
    """
    features = _check_features(features)
    generated = Moments.of(features)
    value = generated.distance(reference)
    num_examples, num_features = features.shape
    if num_examples > num_features:
        error = standard_error(features, generated, reference)
        method = "delta method, given the reference; excludes the bias at this n"
    else:
        error = math.nan
        method = (
            f"no interval: {num_examples} examples for {num_features} features make "
            "the covariance singular"
        )
    half_width = _NORMAL_QUANTILE * error
    return _estimate("fid", value, half_width, num_examples=num_examples, method=method)


def standard_error(
    features: np.ndarray, generated: Moments, reference: Moments
) -> float:
    """Returns sd(g) / sqrt(n) of the derivatives g defined in ``fid``."""
    _, values, vectors = np.linalg.svd(generated.root.T @ reference.root)
    noise = len(values) * np.finfo(np.float64).eps * max(values[0], 1e-300)
    # Directions of zero variance in one of them: no example differs from the mean
    # there.
    inverse_roots = np.where(
        values > noise, 1.0 / np.sqrt(np.maximum(values, noise)), 0
    )
    transport = (reference.root @ vectors.T) * inverse_roots
    shift = generated.mean - reference.mean
    centred = features.astype(np.float64) - generated.mean
    derivatives = (
        2.0 * (centred @ shift)
        + np.einsum("ij,ij->i", centred, centred)
        - np.square(centred @ transport).sum(axis=1)
    )
    return float(derivatives.std(ddof=1)) / math.sqrt(len(features))


MOST_PER_BLOCK = 10_000
_DEGREE = 3
_ROWS = 1024
_LEAST_EXAMPLES = 3


def kid(
    generated: np.ndarray,
    reference: np.ndarray,
    *,
    most_per_block: int = MOST_PER_BLOCK,
) -> QualityMetric:
    """Estimates the squared maximum mean discrepancy with an interval.

    With k(x, y) = (x^T y / num_features + 1)^3, m generated and n real examples,

        KID = sum_{i != j} k(x_i, x_j) / m(m-1) + sum_{i != j} k(y_i, y_j) / n(n-1)
              - 2 sum_{i, j} k(x_i, y_j) / mn.

    All pairs are used up to ``most_per_block`` examples; more are split into disjoint
    blocks, in the given order, and the value is the mean over blocks: also unbiased,
    and its time grows with n instead of n^2. The published estimate is the mean over
    100 random overlapping blocks of 1,000, and its +- is the spread of those, which is
    not an interval of the value.

    The interval is value -+ 1.96 standard errors. These come from leaving out one
    example at a time (Efron & Stein 1981), generated and real, which the row sums of
    the kernel give exactly without further computation, and are summed over independent
    blocks.

    A value below zero is possible and correct: the estimate is unbiased, so for equal
    distributions it is zero on average.
    """
    generated, reference = _check_features(generated), _check_features(reference)
    if generated.shape[1] != reference.shape[1]:
        raise ValueError(
            f"features of length {generated.shape[1]} and {reference.shape[1]} cannot "
            "be compared: extract both with the same extractor"
        )
    num_blocks = -(-max(len(generated), len(reference)) // most_per_block)
    least = min(len(generated), len(reference)) // num_blocks
    if least < _LEAST_EXAMPLES:
        raise ValueError(
            f"kid got {len(generated)} generated and {len(reference)} real examples, "
            f"which is {least} in the smallest of {num_blocks} blocks: it needs at "
            f"least {_LEAST_EXAMPLES}; pass more, or raise most_per_block"
        )
    blocks = zip(
        np.array_split(generated, num_blocks),
        np.array_split(reference, num_blocks),
        strict=True,
    )
    values, variances = zip(*(_block(*block) for block in blocks), strict=True)
    standard_error = float(np.sqrt(np.sum(variances))) / num_blocks
    return _estimate(
        "kid",
        float(np.mean(values)),
        _NORMAL_QUANTILE * standard_error,
        num_examples=len(generated),
        method=f"delete-one jackknife within disjoint blocks; {num_blocks} of at most "
        f"{most_per_block} examples",
    )


def _block(generated: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Returns the unbiased estimate of one block and its jackknife variance."""
    first = generated.astype(np.float64)
    second = reference.astype(np.float64)
    m, n = len(first), len(second)
    within_first = _sums(first, first)[0] - _kernel_of_itself(first)
    within_second = _sums(second, second)[0] - _kernel_of_itself(second)
    across_first, across_second = _sums(first, second)
    sum_first, sum_second = within_first.sum(), within_second.sum()
    across = across_first.sum()
    value = (
        sum_first / (m * (m - 1)) + sum_second / (n * (n - 1)) - 2.0 * across / (m * n)
    )
    # The values without generated example i, then without real example j.
    without_first = (
        (sum_first - 2.0 * within_first) / ((m - 1) * (m - 2))
        + sum_second / (n * (n - 1))
        - 2.0 * (across - across_first) / ((m - 1) * n)
    )
    without_second = (
        sum_first / (m * (m - 1))
        + (sum_second - 2.0 * within_second) / ((n - 1) * (n - 2))
        - 2.0 * (across - across_second) / (m * (n - 1))
    )
    variance = (m - 1) * without_first.var() + (n - 1) * without_second.var()
    return float(value), float(variance)


def _kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first @ second.T / first.shape[1] + 1.0) ** _DEGREE


def _kernel_of_itself(values: np.ndarray) -> np.ndarray:
    squares = np.einsum("ij,ij->i", values, values)
    return (squares / values.shape[1] + 1.0) ** _DEGREE


def _sums(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the kernel over ``second`` and over ``first``, in chunks of rows."""
    over_second, over_first = [], np.zeros(len(second))
    for start in range(0, len(first), _ROWS):
        strip = _kernel(first[start : start + _ROWS], second)
        over_second.append(strip.sum(axis=1))
        over_first += strip.sum(axis=0)
    return np.concatenate(over_second), over_first


NUM_SPLITS = 10


def inception_score(
    logits: np.ndarray, *, num_splits: int = NUM_SPLITS
) -> QualityMetric:
    """Estimates exp(E_x KL(p(y|x) || p(y))), from 1 to the number of classes.

    The examples are split into ``num_splits`` equal parts, in the given order; p(y) is
    the mean of p(y|x) over a part, and the score is the mean over parts. The published
    +- is the standard deviation over parts; the interval here is that of their mean. A
    score depends on the examples per part, and fewer give a smaller score, so both
    numbers are reported.
    """
    from scipy import special

    logits = _check_features(logits)
    if not 1 <= num_splits <= len(logits):
        raise ValueError(
            f"num_splits={num_splits!r} must be between 1 and the {len(logits)} "
            "examples"
        )
    probabilities = special.softmax(logits.astype(np.float64), axis=1)
    ends = [i * len(logits) // num_splits for i in range(1, num_splits)]
    scores = []
    for part in np.split(probabilities, ends):
        divergences = special.rel_entr(part, part.mean(axis=0)).sum(axis=1)
        scores.append(float(np.exp(divergences.mean())))
    if num_splits == 1:
        half_width = math.nan
        method = "no interval: one split gives no information on the spread"
    else:
        quantile = student_quantile(num_splits - 1)
        half_width = quantile * float(np.std(scores, ddof=1)) / math.sqrt(num_splits)
        size = len(logits) // num_splits
        method = f"Student's t over splits; {num_splits} of {size} examples"
    return _estimate(
        "inception_score",
        float(np.mean(scores)),
        half_width,
        num_examples=len(logits),
        method=method,
    )
