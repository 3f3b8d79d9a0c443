"""Mean and covariance of features, merged from batches in any order."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

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
