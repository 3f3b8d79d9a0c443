"""Fréchet distance between Gaussians of features (FID; Heusel et al. 2017)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from workloads.metrics import estimate as estimate_lib
from workloads.metrics.estimate import Moments, check_features

INTERVAL = "delta method, given the reference; excludes the bias at this n"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gaussian:
    """Moments with the square root of their covariance, the most expensive part."""

    mean: np.ndarray  # [num_features].
    # A matrix A with A A^T = covariance, [num_features, num_features].
    root: np.ndarray
    trace: float  # Trace of the covariance.

    @classmethod
    def of(cls, moments: Moments) -> Gaussian:
        """Returns the Gaussian with these moments."""
        return cls.with_covariance(moments.mean, moments.covariance)

    @classmethod
    def with_covariance(cls, mean: np.ndarray, covariance: np.ndarray) -> Gaussian:
        """Returns the Gaussian with a given mean and covariance."""
        values, vectors = np.linalg.eigh(covariance)
        # Rounding error of a zero eigenvalue; its root would be 1e8 times that.
        noise = len(values) * np.finfo(np.float64).eps * abs(values[-1])
        if values[0] < -max(noise, np.finfo(np.float64).tiny) * len(values):
            raise ValueError(
                f"covariance has the eigenvalue {float(values[0])}: those of a "
                "covariance are at least 0; was it made from features?"
            )
        roots = np.sqrt(np.where(values > noise, values, 0.0))
        return cls(
            mean=np.asarray(mean, dtype=np.float64),
            root=vectors * roots,
            trace=float(np.trace(covariance)),
        )


def distance(first: Gaussian, second: Gaussian) -> float:
    """Returns the squared Fréchet distance of two Gaussians (Dowson & Landau 1982).

        |m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1^1/2 S2 S1^1/2)^1/2

    The last trace is the sum of the square roots of the eigenvalues of the symmetrised
    product. With S1 = A A^T and S2 = B B^T these roots are the singular values of
    A^T B, which are computed accurately: from the product itself, a zero eigenvalue
    that rounding has turned into 1e-16 adds 1e-8 to the sum.
    """
    _check_pair(first, second)
    overlap = np.linalg.svd(first.root.T @ second.root, compute_uv=False).sum()
    shift = first.mean - second.mean
    value = shift @ shift + first.trace + second.trace - 2.0 * overlap
    # Equal Gaussians leave the rounding error of the traces, of either sign.
    return max(float(value), 0.0)


def frechet_distance(first: Moments, second: Moments) -> float:
    """The squared Fréchet distance of the Gaussians with two sets of moments."""
    return distance(Gaussian.of(first), Gaussian.of(second))


def fid(features: np.ndarray, reference: Moments) -> estimate_lib.Estimate:
    """Estimates the FID of generated examples, with its sampling error.

    The FID of n examples is larger than that of the generator, by about a constant over
    n (see ``fid_infinity``). The interval is that of the FID of another n examples of
    the same generator, against the same reference: with g_i the derivative of the FID
    towards example i,

        g_i = 2 (m - m_r)^T (x_i - m) + (x_i - m)^T (1 - T) (x_i - m),
        T = B (B^T S B)^-1/2 B^T,  B B^T = S_r,

    its standard error is sd(g) / sqrt(n). There is none if n is not larger than the
    number of features, because the covariance is then singular for any generator.
    """
    features = check_features(features)
    moments = Moments.of(features)
    generated, real = Gaussian.of(moments), Gaussian.of(reference)
    value = distance(generated, real)
    if len(features) <= moments.num_features:
        reason = (
            f"no interval: {len(features)} examples for {moments.num_features} "
            "features make the covariance singular"
        )
        return estimate_lib.estimate(
            "fid", value, None, num_examples=len(features), method=reason
        )
    return estimate_lib.estimate(
        "fid",
        value,
        estimate_lib.normal_quantile() * standard_error(features, generated, real),
        num_examples=len(features),
        method=INTERVAL,
    )


def standard_error(
    features: np.ndarray, generated: Gaussian, reference: Gaussian
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


def _check_pair(first: Gaussian, second: Gaussian) -> None:
    if first.mean.shape != second.mean.shape:
        raise ValueError(
            f"features of length {len(first.mean)} and {len(second.mean)} cannot be "
            "compared: extract both with the same extractor"
        )


NUM_SIZES = 10
LEAST_EXAMPLES_PER_FEATURE = 2
INFINITY_INTERVAL = "delta method around a line in 1/n, given the reference"
_LEAST_SIZES = 3


def fid_infinity(
    features: np.ndarray,
    reference: Moments,
    *,
    num_sizes: int = NUM_SIZES,
    seed: int = 0,
) -> estimate_lib.Estimate:
    """Estimates the FID at n = infinity, without the bias of the generated n.

    A line in 1/n is fitted to FIDs of n/1, n/2, ..., n/num_sizes examples, which are
    evenly spaced in 1/n, and extrapolated to 1/n = 0. The FID of n/k examples is the
    mean over k disjoint parts of the shuffled examples. So every point of the line uses
    each example once: to first order all points carry the *same* sampling error, that
    of ``fid``, which the extrapolation therefore does not amplify; the interval is that
    of ``fid`` around the extrapolated value. Fewer sizes are used if a part would
    have fewer than 2 examples per feature.

    Only the bias of the generated examples is removed, as in the paper: the score
    is relative to the given reference.
    """
    features = check_features(features)
    num_examples, num_features = features.shape
    if num_sizes < _LEAST_SIZES:
        raise ValueError(
            f"num_sizes={num_sizes!r}: a line with a residual needs at least "
            f"{_LEAST_SIZES} points"
        )
    least = LEAST_EXAMPLES_PER_FEATURE * num_features
    num_sizes = min(num_sizes, num_examples // least)
    if num_sizes < _LEAST_SIZES:
        raise ValueError(
            f"fid_infinity got {num_examples} examples of {num_features} features: "
            f"{_LEAST_SIZES} sizes of at least {LEAST_EXAMPLES_PER_FEATURE} examples "
            f"per feature need {_LEAST_SIZES * least}; generate more"
        )
    real = Gaussian.of(reference)
    order = np.random.default_rng(seed).permutation(num_examples)
    values = [
        np.mean(
            [
                distance(_gaussian_of(features[part]), real)
                for part in np.array_split(order, num_parts)
            ]
        )
        for num_parts in range(1, num_sizes + 1)
    ]
    inverse_sizes = np.arange(1, num_sizes + 1) / num_examples
    value = intercept(inverse_sizes, np.asarray(values))
    error = standard_error(features, _gaussian_of(features), real)
    return estimate_lib.estimate(
        "fid_infinity",
        value,
        estimate_lib.normal_quantile() * error,
        num_examples=num_examples,
        method=f"{INFINITY_INTERVAL}; {num_sizes} sizes from "
        f"{num_examples // num_sizes} up",
    )


def intercept(x: np.ndarray, y: np.ndarray) -> float:
    """Returns where the least-squares line through (x, y) meets x = 0."""
    centred = x - x.mean()
    slope = (centred @ y) / (centred @ centred)
    return float(y.mean() - slope * x.mean())


def _gaussian_of(features: np.ndarray) -> Gaussian:
    return Gaussian.of(Moments.of(features))
