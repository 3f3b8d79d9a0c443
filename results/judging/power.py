"""What a gate can find: the probability of each verdict, and what more precision costs.

All of it follows from one number, the *spread*: the standard deviation over generations
of d_g, the log slowdown of a generation (``results/statistics/generations.py``).

The probabilities are exact for normal d_g. Given the measured standard deviation, the
mean is normal and each verdict is an interval of it; the standard deviation follows a
chi distribution, over which the probability is averaged numerically. For pass and
improve this is the cumulative distribution of a noncentral t, which the tests compare.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics import estimates, generations, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_POWER = 0.9
"""A true slowdown is found in 9 of 10 gates."""

MOST_GENERATIONS = 200
"""Searches end here: at two minutes each, a night."""

_NUM_NODES = 4000  # the error of a probability is below 1e-3, also where it jumps
_SMALLEST_STEP = 1e-4  # of an effect that is searched


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    """The probability of each verdict at one true effect; they add up to 1.

    Attributes:
      effect: True slowdown as a ratio: 0.05 is 5 % slower, -0.05 is faster.
      passes: Of pass or improve.
      improves: Of improve alone.
      regresses: Of regress.
      inconclusive: Of inconclusive.
    """

    effect: float
    passes: float
    improves: float
    regresses: float
    inconclusive: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What it takes to judge one true effect correctly.

    Attributes:
      effect: True slowdown as a ratio.
      verdict: The correct verdict: regress from ``delta`` on, pass below.
      num_generations: The fewest that give it with the wanted probability; None if
        ``MOST_GENERATIONS`` do not.
      minutes: Time to measure them, or None.
    """

    effect: float
    verdict: judge.Verdict
    num_generations: int | None
    minutes: float | None


def _check_spread(spread: float) -> None:
    if not (math.isfinite(spread) and spread > 0):
        raise errors.ResultsError(
            f"spread is {spread!r}, must be positive and finite: the standard "
            "deviation of the log ratio over generations, such as 0.03"
        )


def _check_generations(num_generations: int) -> None:
    if num_generations < judge.FEWEST_GENERATIONS:
        raise errors.ResultsError(
            f"num_generations is {num_generations}, must be "
            f"{judge.FEWEST_GENERATIONS} or more: one says nothing about the spread "
            "between processes"
        )


def _check_effect(effect: float) -> None:
    if not (math.isfinite(effect) and effect > -1):
        raise errors.ResultsError(
            f"effect is {effect!r}, must be a ratio above -1: 0.05 is 5 % slower"
        )


def _check_power(power: float) -> None:
    if not 0 < power < 1:
        raise errors.ResultsError(
            f"power is {power!r}, must be more than 0 and less than 1: the probability "
            "of the correct verdict, such as 0.9"
        )


@functools.lru_cache(maxsize=256)
def _relative_deviations(degrees_of_freedom: int) -> np.ndarray:
    """Equally probable values of (measured / true standard deviation)."""
    from scipy import special

    tails = 1 - (np.arange(_NUM_NODES) + 0.5) / _NUM_NODES
    squares = special.chdtri(degrees_of_freedom, tails) / degrees_of_freedom
    deviations: np.ndarray = np.sqrt(squares)
    return deviations


def _operating_point(
    spread: float, num_generations: int, delta: float, alpha: float, effect: float
) -> OperatingPoint:
    from scipy import special

    error = spread / math.sqrt(num_generations)
    quantile = estimates.student_quantile(num_generations - 1, confidence=1 - 2 * alpha)
    halves = quantile * error * _relative_deviations(num_generations - 1)
    limit, centre = math.log1p(delta), math.log1p(effect)

    def below(ends: np.ndarray) -> float:
        """Probability that the measured mean is below an end."""
        return float(special.ndtr((ends - centre) / error).mean())

    passes = below(limit - halves)
    # low > 0 and high >= limit: the mean is above both ends.
    regresses = 1 - below(np.maximum(halves, limit - halves))
    return OperatingPoint(
        effect=effect,
        passes=passes,
        improves=below(-halves),
        regresses=regresses,
        inconclusive=max(0.0, 1 - passes - regresses),
    )


def operating_points(
    spread: float,
    num_generations: int,
    delta: float,
    effects: Sequence[float],
    *,
    alpha: float = judge.DEFAULT_ALPHA,
) -> tuple[OperatingPoint, ...]:
    """Returns the probability of each verdict at each true effect.

    Args:
      spread: Standard deviation over generations of the log slowdown.
      num_generations: Generations of a gate.
      delta: The slowdown that matters, as a ratio.
      effects: True slowdowns, as ratios.
      alpha: The accepted probability of passing a slowdown of exactly ``delta``.

    Raises:
      ResultsError: An argument that is out of range.
    """
    _check_spread(spread)
    _check_generations(num_generations)
    judge.check_delta(delta)
    judge.check_alpha(alpha)
    for effect in effects:
        _check_effect(effect)
    return tuple(
        _operating_point(spread, num_generations, delta, alpha, effect)
        for effect in effects
    )


def _correct_verdict(effect: float, delta: float) -> judge.Verdict:
    return judge.Verdict.REGRESS if effect >= delta else judge.Verdict.PASS


def _probability_of_correct(point: OperatingPoint, delta: float) -> float:
    is_regression = _correct_verdict(point.effect, delta) is judge.Verdict.REGRESS
    return point.regresses if is_regression else point.passes


def needed(
    effects: Sequence[float],
    *,
    spread: float,
    minutes_per_generation: float,
    delta: float = judge.DEFAULT_DELTA,
    alpha: float = judge.DEFAULT_ALPHA,
    power: float = DEFAULT_POWER,
) -> tuple[Need, ...]:
    """Returns what it takes to give each true effect its correct verdict.

    Args:
      effects: True slowdowns, as ratios.
      spread: Standard deviation over generations of the log slowdown, of generations
        as long as ``minutes_per_generation``.
      minutes_per_generation: Start-up of its processes included.
      delta: The slowdown that matters, as a ratio.
      alpha: The accepted probability of passing a slowdown of exactly ``delta``.
      power: The wanted probability of the correct verdict.

    Raises:
      ResultsError: An argument that is out of range.
    """
    _check_power(power)
    if not (math.isfinite(minutes_per_generation) and minutes_per_generation > 0):
        raise errors.ResultsError(
            f"minutes_per_generation is {minutes_per_generation!r}, must be positive "
            "and finite"
        )
    found: list[Need] = []
    for effect in effects:
        number = None
        for candidate in range(judge.FEWEST_GENERATIONS, MOST_GENERATIONS + 1):
            (point,) = operating_points(spread, candidate, delta, [effect], alpha=alpha)
            if _probability_of_correct(point, delta) >= power:
                number = candidate
                break
        found.append(
            Need(
                effect=effect,
                verdict=_correct_verdict(effect, delta),
                num_generations=number,
                minutes=None if number is None else number * minutes_per_generation,
            )
        )
    return tuple(found)


def smallest_effect_found(
    spread: float,
    num_generations: int,
    *,
    delta: float = judge.DEFAULT_DELTA,
    alpha: float = judge.DEFAULT_ALPHA,
    power: float = DEFAULT_POWER,
) -> float | None:
    """Returns the smallest slowdown that these generations find as a regression.

    Returns:
      A ratio, at least ``delta``; None if not even a slowdown of 100 times is found.

    Raises:
      ResultsError: An argument that is out of range.
    """
    _check_power(power)

    def is_found(effect: float) -> bool:
        (point,) = operating_points(
            spread, num_generations, delta, [effect], alpha=alpha
        )
        return point.regresses >= power

    low, high = delta, 99.0
    if is_found(low):
        return low
    if not is_found(high):
        return None
    while high - low > _SMALLEST_STEP:
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def median_half_width(
    spread: float,
    num_generations: int,
    *,
    confidence: float = estimates.CONFIDENCE,
) -> float:
    """Returns the half width, as a logarithm, that half of all measurements reach.

    Raises:
      ResultsError: An argument that is out of range.
    """
    from scipy import special

    _check_spread(spread)
    _check_generations(num_generations)
    degrees = num_generations - 1
    relative = math.sqrt(float(special.chdtri(degrees, 0.5)) / degrees)
    quantile = estimates.student_quantile(degrees, confidence=confidence)
    return quantile * spread * relative / math.sqrt(num_generations)


def generations_for_target(target: float, spread: float) -> int | None:
    """Returns after how many generations half of all measurements are precise enough.

    The same rule as ``generations.is_precise_enough``, so at least five.

    Args:
      target: Allowed half width of the 95 % interval as a ratio: 0.03 is 3 %.
      spread: Standard deviation over generations of the log ratio.

    Returns:
      A number of generations, or None if ``MOST_GENERATIONS`` are not enough.

    Raises:
      ResultsError: A target or spread that is not positive and finite.
    """
    generations.check_target(target)
    for number in range(generations.FEWEST_TO_STOP, MOST_GENERATIONS + 1):
        half_width = generations.widening(number) * median_half_width(spread, number)
        if half_width <= math.log1p(target):
            return number
    return None
