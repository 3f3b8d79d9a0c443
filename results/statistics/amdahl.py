"""Amdahl's law, fitted to throughput over the number of replicas.

With p = N / N_b, the replicas in units of the fewest measured, and X the throughput,
Amdahl's law (1967) is X = X_b p / (1 + sigma (p - 1)).

It is fitted to one mean logarithm of throughput per N, by least squares with sigma in
[0, 1]. What the law misses and the noise are one spread, estimated with K - 2 degrees
of freedom from K numbers of replicas; so a law that does not fit gets a wide band. That
needs numbers of replicas, not repetitions: ``FEWEST_NUMBERS`` are required, and fewer
are an error. Bands and intervals are those of the linearized fit with Student's t; at
its bound sigma counts as known there, except in its own interval.

The law is also fitted without the largest N, and its prediction there compared with
what was measured: the backtest. Nothing beyond the largest measured N is computed.

Nominal 95 % intervals of sigma, band and backtest hold the truth in 0.95 of 2,000
simulated studies, with sigma 0.05, 2 % of noise per N and six numbers of replicas from
1 to 32 (tests/statistics/test_amdahl.py repeats a smaller version).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics import estimates
from results.statistics.estimates import Mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.statistics.estimates import Estimate

FEWEST_NUMBERS = 6
NUM_CURVE_POINTS = 65
METHOD = "Student's t of the linearized least squares over numbers of replicas"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The fitted law over the measured range.

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
    predicted: Estimate
    measured: float
    is_inside: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The law of one case.

    Attributes:
      sigma: The serial fraction, in units of the fewest measured replicas; its n is the
        number of distinct numbers of replicas.
      spread: Residual standard deviation of log throughput.
      curve: The law and its band.
      backtest: The largest N, held out.
    """

    sigma: Estimate
    spread: float
    curve: Curve
    backtest: Backtest


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Solution:
    """The least squares.

    Attributes:
      parameters: log X_b and sigma.
      covariance: Of both; 0 for sigma at a bound.
      free_covariance: The same as if there were no bounds.
      variance: Of the residuals.
      degrees_of_freedom: Of the residuals.
    """

    parameters: np.ndarray
    covariance: np.ndarray
    free_covariance: np.ndarray
    variance: float
    degrees_of_freedom: int


def fit(throughputs: Mapping[int, Sequence[float]]) -> Fit:
    """Fits the law to the throughputs of one backend in one scaling mode.

    Args:
      throughputs: By number of replicas, one positive number per repetition.

    Raises:
      ResultsError: Fewer than ``FEWEST_NUMBERS`` numbers of replicas; a throughput that
        is not positive and finite.
    """
    numbers = sorted(throughputs)
    if len(numbers) < FEWEST_NUMBERS:
        missing = FEWEST_NUMBERS - len(numbers)
        raise errors.ResultsError(
            f"measured at {len(numbers)} numbers of replicas "
            f"({', '.join(map(str, numbers)) or 'none'}); a fit and its backtest need "
            f"{FEWEST_NUMBERS}: measure {missing} more"
        )
    p = np.array(numbers, np.float64) / numbers[0]
    logs = np.array([_mean_log(n, throughputs[n]) for n in numbers])
    found = _solve(p, logs)
    return Fit(
        sigma=_sigma(found, len(numbers)),
        spread=math.sqrt(found.variance),
        curve=_curve(found, numbers),
        backtest=_backtest(p, logs, numbers),
    )


def _mean_log(num_replicas: int, values: Sequence[float]) -> float:
    array = np.asarray(values, np.float64)
    if not array.size or not (np.isfinite(array).all() and (array > 0).all()):
        raise errors.ResultsError(
            f"throughputs at {num_replicas} replicas are {list(values)!r}, must be one "
            "or more positive and finite numbers; leave out trials that are not ok"
        )
    return float(np.log(array).mean())


def _log_law(parameters: np.ndarray, p: np.ndarray) -> np.ndarray:
    level, sigma = parameters
    result: np.ndarray = level + np.log(p) - np.log(1 + sigma * (p - 1))
    return result


def _gradient(parameters: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Derivatives of ``_log_law``, [len(p), 2]."""
    return np.stack([np.ones_like(p), -(p - 1) / (1 + parameters[1] * (p - 1))], axis=1)


def _solve(p: np.ndarray, logs: np.ndarray) -> _Solution:
    from scipy import optimize

    scale = np.array([1.0, 1 / p[-1]])
    found = optimize.least_squares(
        lambda free: _log_law(free, p) - logs,
        np.array([logs[0], 0.1 / p[-1]]),
        jac=lambda free: _gradient(free, p),
        bounds=([-np.inf, 0.0], [np.inf, 1.0]),
        x_scale=scale,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    level, sigma = found.x
    # The solver stays inside the bounds; what has come that near is at its bound.
    near = 1e-6 * scale[1]
    is_bound = not near <= sigma <= 1 - near
    parameters = np.array([level, round(sigma) if is_bound else sigma])
    degrees = len(p) - len(parameters)
    residuals = _log_law(parameters, p) - logs
    variance = float(residuals @ residuals) / degrees
    gradient = _gradient(parameters, p)
    free = variance * np.linalg.inv(gradient.T @ gradient)
    covariance = free
    if is_bound:
        covariance = np.diag([variance / len(p), 0.0])
    return _Solution(
        parameters=parameters,
        covariance=covariance,
        free_covariance=free,
        variance=variance,
        degrees_of_freedom=degrees,
    )


def _band(
    found: _Solution, p: np.ndarray, *, of_measurement: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The law's logarithm and its standard error, or that of a new measurement."""
    gradient = _gradient(found.parameters, p)
    variance = np.einsum("ij,jk,ik->i", gradient, found.covariance, gradient)
    if of_measurement:
        variance = variance + found.variance
    return _log_law(found.parameters, p), np.sqrt(variance)


def _sigma(found: _Solution, n: int) -> Estimate:
    """The serial fraction; at its bound, as far as the data allow without it."""
    whole = Mean(
        centre=float(found.parameters[1]),
        standard_error=math.sqrt(found.free_covariance[1, 1]),
        degrees_of_freedom=found.degrees_of_freedom,
        n=n,
    ).estimate(METHOD)
    assert whole.low is not None
    assert whole.high is not None
    return dataclasses.replace(
        whole, low=max(whole.low, 0.0), high=min(whole.high, 1.0)
    )


def _curve(found: _Solution, numbers: Sequence[int]) -> Curve:
    grid = np.geomspace(numbers[0], numbers[-1], NUM_CURVE_POINTS)
    logs, error = _band(found, grid / numbers[0])
    half = estimates.student_quantile(found.degrees_of_freedom) * error
    return Curve(
        num_replicas=tuple(grid.tolist()),
        throughputs=tuple(np.exp(logs).tolist()),
        lows=tuple(np.exp(logs - half).tolist()),
        highs=tuple(np.exp(logs + half).tolist()),
    )


def _backtest(p: np.ndarray, logs: np.ndarray, numbers: Sequence[int]) -> Backtest:
    held_out = _solve(p[:-1], logs[:-1])
    centre, error = _band(held_out, p[-1:], of_measurement=True)
    predicted = Mean(
        centre=float(centre[0]),
        standard_error=float(error[0]),
        degrees_of_freedom=held_out.degrees_of_freedom,
        n=len(numbers) - 1,
    ).estimate(METHOD)
    measured = float(logs[-1])
    return Backtest(
        num_replicas=numbers[-1],
        predicted=estimates.from_logs(predicted),
        measured=math.exp(measured),
        is_inside=not predicted.excludes(measured),
    )
