"""Aggregates the results of training runs with several seeds (Agarwal et al. 2021).

Returns of reinforcement learning are bounded and skewed, and runs sometimes fail
altogether, so neither a log-normal nor a normal model fits. Robust means drop the
extremes:

- Below ten runs, the mean without a fifth of the runs at either end, and the interval
  of Tukey and McLaughlin (1963), which Yuen (1974) extended to two groups: Student's t
  of the winsorized variance. Of three or four runs none is dropped.
- From ten runs on, and with several strata (the environments of a benchmark), the
  interquartile mean, which drops a quarter at either end, and the stratified bootstrap:
  runs are resampled within each stratum, and percentiles are the ends.

Measured coverage of nominal 95 % intervals, one stratum (40,000 simulated studies for
the trimmed t, 2,000 for the bootstrap; tests/statistics repeats a smaller version). The
bootstrap below ten runs is what the trimmed t replaced:

==================  =====  =====  =====  =====  ======  ======
                    trimmed t            bootstrap
------------------  -------------------  ---------------------
runs                n = 3  n = 5  n = 8  n = 5  n = 10  n = 20
==================  =====  =====  =====  =====  ======  ======
normal               0.95   0.94   0.94   0.90    0.94    0.93
one in five fails    0.96   0.94   0.95   0.89    0.93    0.95
exponential          0.93   0.91   0.93   0.89    0.93    0.93
==================  =====  =====  =====  =====  ======  ======

Fewer than ``FEWEST_RUNS`` runs get no interval. The shares of a performance profile
have exact binomial intervals (Clopper and Pearson 1934), which hold at any number of
runs at least as often as stated.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics.estimates import CONFIDENCE, Estimate, Mean

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

NUM_DRAWS = 4_000
BOOTSTRAP_SEED = 20_211_029
FEWEST_RUNS = 3
FEWEST_RESAMPLED = 10
_TRIMMED = 0.25
_TRIMMED_OF_FEW = 0.2

METHOD = "percentile bootstrap over runs, stratified"
TRIMMED_T = "trimmed t (Yuen): Student's t of the winsorized variance over runs"
INTERQUARTILE_MEAN = "interquartile mean"
TRIMMED_MEAN = "mean without a fifth of the runs at either end"
TYPICAL = "typical run (trimmed mean; of so few runs none is left out)"
FAILED = "no mean: more runs failed than it leaves out"
TOO_FEW = f"no interval: fewer than {FEWEST_RUNS} runs say too little about the spread"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The fraction of runs that reached at least each threshold."""

    thresholds: tuple[float, ...]  # Ascending.
    shares: tuple[float, ...]  # From 0 to 1, one per threshold.
    # Lower ends of exact pointwise intervals, or empty where there are none.
    lows: tuple[float, ...]
    highs: tuple[float, ...]  # Upper ends, or empty where there are none.
    n: int  # Runs.


def statistic_of(num_runs: int, num_strata: int = 1) -> str:
    """Returns in words which mean ``score`` takes of so many runs.

    Of three or four runs none is left out, and their interval still is that of the
    trimmed mean: where one run in five fails it holds that in 0.96, the mean in 0.47.
    """
    if num_strata > 1 or num_runs >= FEWEST_RESAMPLED:
        return INTERQUARTILE_MEAN
    return TRIMMED_MEAN if int(_TRIMMED_OF_FEW * num_runs) else TYPICAL


def score(strata: Mapping[Hashable, Sequence[float]]) -> Estimate:
    """Returns a robust mean of all runs, with its interval."""
    arrays = _checked(strata)
    everything = np.concatenate(arrays)
    n = everything.size
    is_small = len(arrays) == 1 and n < FEWEST_RESAMPLED
    value = _small_mean(everything) if is_small else _trimmed_means(everything[None])[0]
    if not math.isfinite(value):
        return Estimate(
            value=float(value), low=None, high=None, n=n, unit="", method=FAILED
        )
    if is_small:
        return _trimmed(everything).estimate(TRIMMED_T, otherwise=TOO_FEW)
    low, high, method = None, None, TOO_FEW
    if n >= FEWEST_RUNS:
        low, high = _ends(_trimmed_means(_resampled(arrays)))
        method = METHOD
    return Estimate(value=float(value), low=low, high=high, n=n, unit="", method=method)


def _small_mean(values: np.ndarray) -> float:
    """The trimmed mean of a few runs, infinite if more of them failed."""
    cut = int(_TRIMMED_OF_FEW * values.size)
    return float(np.sort(values)[cut : values.size - cut].mean())


def _trimmed(values: np.ndarray) -> Mean:
    """The trimmed mean of a few runs, with the winsorized standard error."""
    n = values.size
    cut = int(_TRIMMED_OF_FEW * n)
    num_kept = n - 2 * cut
    ordered = np.sort(values)
    error = None
    if n >= FEWEST_RUNS:
        winsorized = np.clip(ordered, ordered[cut], ordered[n - cut - 1])
        squares = float(((winsorized - winsorized.mean()) ** 2).sum())
        error = math.sqrt(squares / (num_kept * (num_kept - 1)))
    return Mean(
        centre=float(ordered[cut : n - cut].mean()),
        standard_error=error,
        degrees_of_freedom=num_kept - 1,
        n=n,
    )


def profile(
    strata: Mapping[Hashable, Sequence[float]], thresholds: Sequence[float]
) -> Profile:
    """The fraction of runs that reached each threshold: a performance profile."""
    arrays = _checked(strata)
    everything = np.concatenate(arrays)
    levels = np.asarray(thresholds, np.float64)
    shares = (everything[:, None] >= levels).mean(axis=0)
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    if everything.size >= FEWEST_RUNS:
        lows, highs = _clopper_pearson(
            (everything[:, None] >= levels).sum(axis=0), everything.size
        )
    return Profile(
        thresholds=tuple(levels.tolist()),
        shares=tuple(shares.tolist()),
        lows=lows,
        highs=highs,
        n=everything.size,
    )


def _clopper_pearson(
    counts: np.ndarray, n: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact intervals of shares; with several strata they are longer than needed."""
    from scipy import special  # a tenth of the import time of scipy.stats

    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # where all or no runs reached the level
        lows = special.betaincinv(counts, n - counts + 1, tail)
        highs = special.betaincinv(counts + 1, n - counts, 1 - tail)
    lows = np.where(counts == 0, 0.0, lows)
    highs = np.where(counts == n, 1.0, highs)
    return tuple(lows.tolist()), tuple(highs.tolist())


def _checked(
    strata: Mapping[Hashable, Sequence[float] | np.ndarray],
) -> list[np.ndarray]:
    arrays = [np.asarray(values, np.float64) for values in strata.values()]
    if not arrays or any(a.ndim != 1 or not a.size for a in arrays):
        raise errors.ResultsError(
            f"runs are {dict(strata)!r}, every stratum must have at least one number"
        )
    if any(np.isnan(array).any() for array in arrays):
        raise errors.ResultsError(
            f"runs are {dict(strata)!r}, none may be nan; runs that failed are "
            "infinitely bad"
        )
    return arrays


def _resampled(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Runs resampled within each stratum, [NUM_DRAWS, runs].

    Seeded by the sizes, so that a figure does not depend on the other figures.
    """
    generator = np.random.default_rng([BOOTSTRAP_SEED, *(a.size for a in arrays)])
    return np.concatenate(
        [
            array[generator.integers(0, array.size, (NUM_DRAWS, array.size))]
            for array in arrays
        ],
        axis=1,
    )


def _trimmed_means(values: np.ndarray) -> np.ndarray:
    """The mean of each row without a quarter at either end, rounded down."""
    count = values.shape[1]
    cut = int(_TRIMMED * count)
    kept = np.partition(values, [cut, count - cut - 1], axis=1)[:, cut : count - cut]
    means: np.ndarray = kept.mean(axis=1)
    return means


def _ends(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    ends = [tail, 1 - tail]
    if np.isfinite(values).all():
        low, high = np.quantile(values, ends)
    else:  # between an infinite value and another there is none
        low, high = np.quantile(values, ends, method="inverted_cdf")
    return float(low), float(high)
