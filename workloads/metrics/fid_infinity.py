"""FID of infinitely many generated examples (Chong & Forsyth 2020)."""

from __future__ import annotations

import numpy as np

from workloads.metrics import estimate as estimate_lib
from workloads.metrics import fid as fid_lib
from workloads.metrics.moments import Moments, check_features

NUM_SIZES = 10
LEAST_EXAMPLES_PER_FEATURE = 2
INTERVAL = "delta method around a line in 1/n, given the reference"
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
    real = fid_lib.Gaussian.of(reference)
    order = np.random.default_rng(seed).permutation(num_examples)
    values = [
        np.mean(
            [
                fid_lib.distance(_gaussian_of(features[part]), real)
                for part in np.array_split(order, num_parts)
            ]
        )
        for num_parts in range(1, num_sizes + 1)
    ]
    inverse_sizes = np.arange(1, num_sizes + 1) / num_examples
    value = intercept(inverse_sizes, np.asarray(values))
    error = fid_lib.standard_error(features, _gaussian_of(features), real)
    return estimate_lib.estimate(
        "fid_infinity",
        value,
        estimate_lib.normal_quantile() * error,
        num_examples=num_examples,
        method=f"{INTERVAL}; {num_sizes} sizes from {num_examples // num_sizes} up",
    )


def intercept(x: np.ndarray, y: np.ndarray) -> float:
    """Returns where the least-squares line through (x, y) meets x = 0."""
    centred = x - x.mean()
    slope = (centred @ y) / (centred @ centred)
    return float(y.mean() - slope * x.mean())


def _gaussian_of(features: np.ndarray) -> fid_lib.Gaussian:
    return fid_lib.Gaussian.of(Moments.of(features))
