"""Least squares of a law of throughput, and the uncertainty of what it gives.

See ``laws`` for the laws and for what the spread of the residuals stands for.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

CONFIDENCE = 0.95

LAWS = {"amdahl": 2, "usl": 3}
"""Parameters of each law: throughput of the fewest replicas, sigma, kappa."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A number with its interval; an end is None where there is none."""

    value: float
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """The least squares of a law.

    Attributes:
      parameters: In order: log X_b, sigma, kappa (0 for ``amdahl``).
      covariance: Of the parameters; 0 for those at a bound.
      free_covariance: The same as if there were no bounds.
      variance: Of the residuals.
      degrees_of_freedom: Of the residuals.
    """

    parameters: np.ndarray
    covariance: np.ndarray
    free_covariance: np.ndarray
    variance: float
    degrees_of_freedom: int

    @property
    def quantile(self) -> float:
        """Student's t for two-sided intervals."""
        from scipy import special  # a tenth of the import time of scipy.stats

        return float(special.stdtrit(self.degrees_of_freedom, (1 + CONFIDENCE) / 2))


def log_law(parameters: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The logarithm of throughput at p."""
    level, sigma, kappa = parameters
    loss: np.ndarray = 1 + sigma * (p - 1) + kappa * p * (p - 1)
    result: np.ndarray = level + np.log(p) - np.log(loss)
    return result


def _gradient(parameters: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Derivatives of ``_log_law``, [len(p), 3]."""
    _, sigma, kappa = parameters
    loss = 1 + sigma * (p - 1) + kappa * p * (p - 1)
    return np.stack([np.ones_like(p), -(p - 1) / loss, -p * (p - 1) / loss], axis=1)


def solve(law: str, p: np.ndarray, logs: np.ndarray) -> Solution:
    """Fits a law.

    Args:
      law: One of ``LAWS``.
      p: Replicas in units of the fewest, ascending; more than the law has parameters.
      logs: Logarithm of throughput, one per number.
    """
    from scipy import optimize

    count = LAWS[law]

    def whole(free: np.ndarray) -> np.ndarray:
        return np.concatenate([free, np.zeros(3 - count)])

    lows, highs = [-np.inf, 0.0, 0.0][:count], [np.inf, 1.0, np.inf][:count]
    # Kappa is of the size of 1 / p**2, where p may be in the thousands.
    scale = np.array([1.0, 1 / p[-1], 1 / p[-1] ** 2])[:count]
    start = np.array([logs[0], 0.1 / p[-1], 0.1 / p[-1] ** 2])[:count]
    found = optimize.least_squares(
        lambda free: log_law(whole(free), p) - logs,
        start,
        jac=lambda free: _gradient(whole(free), p)[:, :count],
        bounds=(lows, highs),
        x_scale=scale,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    parameters = whole(found.x)
    # The solver stays inside the bounds; what has come that near is at its bound.
    near = 1e-6 * scale
    is_low, is_high = found.x < np.array(lows) + near, found.x > np.array(highs) - near
    bounded = np.where(is_low, lows, np.where(is_high, highs, found.x))
    parameters = whole(bounded)
    degrees = len(p) - count
    residuals = log_law(parameters, p) - logs
    variance = float(residuals @ residuals) / degrees
    gradient = _gradient(parameters, p)
    is_free = np.append(~(is_low | is_high), np.zeros(3 - count, bool))
    return Solution(
        parameters=parameters,
        covariance=_covariance(gradient, is_free, variance),
        free_covariance=_covariance(gradient, np.arange(3) < count, variance),
        variance=variance,
        degrees_of_freedom=degrees,
    )


def _covariance(
    gradient: np.ndarray, is_free: np.ndarray, variance: float
) -> np.ndarray:
    """Of the free parameters; 0 for the others."""
    # Columns of one size: sigma and kappa differ by the square of the replicas.
    size = np.linalg.norm(gradient, axis=0)
    scaled = (gradient / size)[:, is_free]
    covariance = np.zeros((3, 3))
    covariance[np.ix_(is_free, is_free)] = variance * np.linalg.pinv(
        scaled.T @ scaled, hermitian=True
    )
    return covariance / np.outer(size, size)


def band(
    found: Solution, p: np.ndarray, *, of_measurement: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the law's logarithm, and the half width of its interval.

    Args:
      found: The law.
      p: Replicas in units of the fewest.
      of_measurement: Whether the interval is that of a new measurement instead.
    """
    gradient = _gradient(found.parameters, p)
    variance = np.einsum("ij,jk,ik->i", gradient, found.covariance, gradient)
    if of_measurement:
        variance = variance + found.variance
    return log_law(found.parameters, p), found.quantile * np.sqrt(variance)


def interval(found: Solution, index: int) -> Interval:
    """Returns a parameter; at its bound, as far as the data allow without it."""
    value = float(found.parameters[index])
    is_bound = found.covariance[index, index] == 0
    covariance = found.free_covariance if is_bound else found.covariance
    half = found.quantile * math.sqrt(covariance[index, index])
    most = 1.0 if index == 1 else math.inf
    return Interval(
        value=value, low=max(value - half, 0.0), high=min(value + half, most)
    )
