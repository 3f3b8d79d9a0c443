"""Laws of throughput over the number of replicas: Amdahl and the USL.

With p = N / N_b, the replicas in units of the fewest measured, and X the throughput:

- **Amdahl** (1967):  X = X_b p / (1 + sigma (p - 1)).
- **Universal scalability law** (Gunther 1993), which adds what replicas cost each
  other:  X = X_b p / (1 + sigma (p - 1) + kappa p (p - 1)).  Throughput peaks at the
  knee p* = sqrt((1 - sigma) / kappa).

Laws are fitted to one mean logarithm of throughput per N, by least squares with sigma
in [0, 1] and kappa >= 0. What a law misses and the noise are one spread, estimated with
K - m degrees of freedom from K numbers of replicas and m parameters; so a law that does
not fit gets a wide band. That needs numbers of replicas, not repetitions:
``FEWEST_NUMBERS`` are required, and fewer are an error. Bands and intervals are those
of the linearized fit with Student's t; a parameter at its bound counts as known there,
except in its own interval.

The law is also fitted without the largest N, and its prediction there compared with
what was measured: the backtest. Nothing beyond the largest measured N is computed.

Measured coverage of the nominal 95 % intervals, with 2 % of noise per N and six numbers
of replicas from 1 to 32 (2,000 simulated studies; tests/statistics/test_laws.py repeats
a smaller version):

==========================  =====  =====  ========  ========  =====
law, sigma, kappa           sigma  kappa  band end  backtest   knee
==========================  =====  =====  ========  ========  =====
Amdahl, 0.05                 0.95             0.95      0.95
USL, 0.05, 0                 0.96   0.98      0.96      0.97
USL, 0.05, 0.002             0.95   0.95      0.95      0.96   0.96
USL, 0.02, 0.005             0.95   0.95      0.95      0.96   0.96
==========================  =====  =====  ========  ========  =====
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics.law_solution import (
    CONFIDENCE,
    LAWS,
    Interval,
    band,
    interval,
    solve,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.statistics.law_solution import Solution

FEWEST_NUMBERS = 6
NUM_CURVE_POINTS = 65
NUM_DRAWS = 19_999
DRAW_SEED = 19_930_301

NO_KNEE = "none within the measured range"
BEYOND = "its interval reaches beyond the measured range"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Knee:
    """Where throughput peaks.

    Attributes:
      num_replicas: Replicas at the peak, or None if there is none in the range.
      low: Lower end of the interval, or None.
      high: Upper end, or None if it is beyond the measured range.
      detail: Says what is missing; empty if nothing.
    """

    num_replicas: float | None
    low: float | None
    high: float | None
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A fitted law over the measured range.

    Attributes:
      num_replicas: From the fewest to the most measured replicas.
      throughputs: Of the law, one per number.
      lows: Lower ends of pointwise intervals of the law.
      highs: Upper ends.
    """

    num_replicas: tuple[float, ...]
    throughputs: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Backtest:
    """The largest N, predicted from all others.

    Attributes:
      num_replicas: The largest measured N.
      predicted: Throughput there, with the interval of a new measurement.
      measured: Throughput that was measured.
      is_inside: Whether it lies in the interval.
    """

    num_replicas: int
    predicted: Interval
    measured: float
    is_inside: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A law fitted to a case.

    Attributes:
      law: ``amdahl`` or ``usl``.
      sigma: Share of contention (Amdahl's serial fraction), in units of the fewest
        measured replicas.
      kappa: Share of what replicas cost each other; 0 by definition for ``amdahl``.
      spread: Residual standard deviation of log throughput.
      num_numbers: Distinct numbers of replicas.
      curve: The law and its band.
      knee: Where throughput peaks.
      backtest: The largest N, held out.
      confidence: Nominal coverage of intervals and band.
    """

    law: str
    sigma: Interval
    kappa: Interval
    spread: float
    num_numbers: int
    curve: Curve
    knee: Knee
    backtest: Backtest
    confidence: float = CONFIDENCE


def fit(law: str, throughputs: Mapping[int, Sequence[float]]) -> Fit:
    """Fits a law to the throughputs of one backend in one scaling mode.

    Args:
      law: ``amdahl`` or ``usl``.
      throughputs: By number of replicas, one positive number per repetition.

    Raises:
      ResultsError: An unknown law; fewer than ``FEWEST_NUMBERS`` numbers of replicas; a
        throughput that is not positive and finite.
    """
    if law not in LAWS:
        raise errors.ResultsError(f"law {law!r} is not one of {', '.join(LAWS)}")
    numbers = sorted(throughputs)
    if len(numbers) < FEWEST_NUMBERS:
        missing = FEWEST_NUMBERS - len(numbers)
        raise errors.ResultsError(
            f"a law was requested from {len(numbers)} numbers of replicas "
            f"({', '.join(map(str, numbers)) or 'none'}); a fit and its backtest need "
            f"{FEWEST_NUMBERS}: measure {missing} more"
        )
    p = np.array(numbers, np.float64) / numbers[0]
    logs = np.array([_mean_log(n, throughputs[n]) for n in numbers])
    found = solve(law, p, logs)
    return Fit(
        law=law,
        sigma=interval(found, 1),
        kappa=interval(found, 2)
        if law == "usl"
        else Interval(value=0.0, low=0.0, high=0.0),
        spread=math.sqrt(found.variance),
        num_numbers=len(numbers),
        curve=_curve(found, numbers),
        knee=_knee(found, numbers),
        backtest=_backtest(law, p, logs, numbers),
    )


def _mean_log(num_replicas: int, values: Sequence[float]) -> float:
    array = np.asarray(values, np.float64)
    if not array.size or not (np.isfinite(array).all() and (array > 0).all()):
        raise errors.ResultsError(
            f"throughputs at {num_replicas} replicas are {list(values)!r}, must be one "
            "or more positive and finite numbers; leave out trials that are not ok"
        )
    return float(np.log(array).mean())


def _curve(found: Solution, numbers: Sequence[int]) -> Curve:
    grid = np.geomspace(numbers[0], numbers[-1], NUM_CURVE_POINTS)
    logs, half = band(found, grid / numbers[0])
    return Curve(
        num_replicas=tuple(grid.tolist()),
        throughputs=tuple(np.exp(logs).tolist()),
        lows=tuple(np.exp(logs - half).tolist()),
        highs=tuple(np.exp(logs + half).tolist()),
    )


def _knee(found: Solution, numbers: Sequence[int]) -> Knee:
    """The peak; its interval is that of the peaks of drawn parameters."""
    most = numbers[-1] / numbers[0]
    _, sigma, kappa = found.parameters
    peak = _peak(np.array([sigma]), np.array([kappa]))[0]
    if peak > most:
        return Knee(num_replicas=None, low=None, high=None, detail=NO_KNEE)
    generator = np.random.default_rng(DRAW_SEED)
    normal = generator.multivariate_normal(
        np.zeros(2), found.covariance[1:, 1:], NUM_DRAWS, method="eigh"
    )
    degrees = found.degrees_of_freedom
    spread = np.sqrt(generator.chisquare(degrees, NUM_DRAWS) / degrees)
    drawn = np.array([sigma, kappa]) + normal / spread[:, None]
    peaks = _peak(np.clip(drawn[:, 0], 0, 1), np.maximum(drawn[:, 1], 0))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(peaks, [tail, 1 - tail], method="inverted_cdf")
    is_beyond = high > most
    return Knee(
        num_replicas=float(peak * numbers[0]),
        low=float(low * numbers[0]),
        high=None if is_beyond else float(high * numbers[0]),
        detail=BEYOND if is_beyond else "",
    )


def _peak(sigma: np.ndarray, kappa: np.ndarray) -> np.ndarray:
    """Where throughput peaks, in units of the fewest replicas; at least there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = np.sqrt((1 - sigma) / kappa)
    return np.where(kappa > 0, np.maximum(peak, 1.0), np.inf)


def _backtest(
    law: str, p: np.ndarray, logs: np.ndarray, numbers: Sequence[int]
) -> Backtest:
    held_out = solve(law, p[:-1], logs[:-1])
    predicted, half = band(held_out, p[-1:], of_measurement=True)
    low, high = float(predicted[0] - half[0]), float(predicted[0] + half[0])
    return Backtest(
        num_replicas=numbers[-1],
        predicted=Interval(
            value=math.exp(predicted[0]), low=math.exp(low), high=math.exp(high)
        ),
        measured=math.exp(logs[-1]),
        is_inside=low <= float(logs[-1]) <= high,
    )
