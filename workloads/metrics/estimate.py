"""A figure with unit, count and interval, or the reason why it has no interval."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.spec import QualityMetric

if TYPE_CHECKING:
    from collections.abc import Iterable


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


_MATRIX = 2  # rank
_CHUNK_SIZE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Moments:
    """The sufficient statistics of a Gaussian: count, mean and scatter.

    Two of them can be merged into those of all their examples, so replicas and workers
    can compute their own and merge them at the end. Merging is that of Chan, Golub and
    LeVeque (1979): with d = mean_b - mean_a,

        mean = mean_a + d * n_b / n
        scatter = scatter_a + scatter_b + (d d^T) * n_a n_b / n

    This avoids the cancellation of sum(x x^T) - n mean mean^T, which loses all digits
    if the mean is large relative to the spread.
    """

    num_examples: int  # n, at least 1.
    mean: np.ndarray  # [num_features], float64.
    # Sum of (x - mean)(x - mean)^T, [num_features, num_features], float64.
    scatter: np.ndarray

    @classmethod
    def of(cls, features: Any) -> Moments:
        """Returns the moments of an array of examples."""
        features = check_features(features)
        starts = range(0, len(features), _CHUNK_SIZE)
        return cls.merged(_of_chunk(features[i : i + _CHUNK_SIZE]) for i in starts)

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """Returns the moments of all examples of ``parts``, such as replicas."""
        parts = list(parts)
        if not parts:
            raise ValueError(
                "Moments.merged got no parts: pass the moments of at least one replica"
            )
        return functools.reduce(Moments.merge, parts)

    def merge(self, other: Moments) -> Moments:
        """Returns the moments of the examples of both."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(
                f"Moments of {len(self.mean)} and of {len(other.mean)} features cannot "
                "be merged: extract both with the same extractor"
            )
        num_examples = self.num_examples + other.num_examples
        distance = other.mean - self.mean
        share = other.num_examples / num_examples
        shift = np.outer(distance, distance) * (self.num_examples * share)
        return Moments(
            num_examples=num_examples,
            mean=self.mean + distance * share,
            scatter=self.scatter + other.scatter + shift,
        )

    @property
    def num_features(self) -> int:
        """Length of a feature vector."""
        return len(self.mean)

    @property
    def covariance(self) -> np.ndarray:
        """The unbiased covariance, scatter / (n - 1)."""
        if self.num_examples < 2:  # noqa: PLR2004 - one example has no spread
            raise ValueError(
                "a covariance needs at least 2 examples, but Moments has "
                f"{self.num_examples}: add more first"
            )
        return self.scatter / (self.num_examples - 1)


def check_features(features: Any) -> np.ndarray:
    """Returns ``features`` as an array, in its own type."""
    features = np.asarray(features)
    if features.ndim != _MATRIX or not features.size:
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


def _of_chunk(features: np.ndarray) -> Moments:
    values = features.astype(np.float64)
    mean = values.mean(axis=0)
    values -= mean
    return Moments(num_examples=len(values), mean=mean, scatter=values.T @ values)


_SHOWN_DIGITS = 16  # of 64 hexadecimal ones


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MetricProtocol:
    """Everything that changes a score while the generator stays the same."""

    metric: str  # Name of the score, such as ``fid``.
    settings: str  # Other settings of the score, such as the number of splits.
    extractor: str  # Name of the feature extractor.
    extractor_digest: str  # SHA-256 of its weights.
    preparation: str  # How images become its input: size, range, resizing method.
    num_examples: int  # Generated examples.
    reference: str  # Name of the real examples; empty if the score has none.
    reference_digest: str  # SHA-256 of their pixels.
    num_reference_examples: int  # Their number.

    def describe(self) -> str:
        """Describes in one line what has no separate field in a record.

        Records with equal name, count and description have equal protocols (digests are
        truncated to 64 bits).
        """
        text = (
            f"{self.settings}; extractor {self.extractor} "
            f"{self.extractor_digest[:_SHOWN_DIGITS]}; "
            f"{self.preparation}"
        )
        if self.reference:
            text += (
                f"; reference {self.reference}, n = {self.num_reference_examples}, "
                f"{self.reference_digest[:_SHOWN_DIGITS]}"
            )
        return text


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A figure with its protocol."""

    estimate: Estimate
    protocol: MetricProtocol

    def as_quality_metric(self) -> QualityMetric:
        """Returns the figure as a quality metric, with the protocol in one line."""
        figure = self.estimate
        if figure.low is None or figure.high is None:
            raise ValueError(
                f"{figure.name} of {figure.num_examples} examples has "
                f"{figure.method}: a quality metric needs an interval; generate more "
                "examples, or report kid, which has one at any n"
            )
        return QualityMetric(
            name=figure.name,
            value=figure.value,
            unit=figure.unit,
            num_examples=figure.num_examples,
            low=figure.low,
            high=figure.high,
            confidence=figure.confidence,
            method=figure.method,
            protocol=self.protocol.describe(),
        )
