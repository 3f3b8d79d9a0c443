"""What a gate can find: the share of each verdict, and what more precision costs.

Shares are of simulated gates that follow the rule of the gate itself, with fixed draws.
The log slowdown of a repetition is normal with the same standard deviation in every
case, and the change is in one of them. Sustained stretches are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from results.statistics.group_sequential import Design

DEFAULT_POWER = 0.9
"""A true slowdown is found in 9 of 10 gates."""

MOST_REPETITIONS = 200
"""Searches end here: at two minutes each, a night."""

NUM_GATES = 2000
"""A share of one half is known within 0.022 (95 %), one of 0.95 within 0.010."""
_SEED = 20_260_711
_SMALLEST_STEP = 1e-3  # of an effect that is searched


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    # True slowdown of one case as a ratio: 0.05 is 5 % slower, -0.05 is faster.
    effect: float
    passes: float  # Of pass.
    regresses: float  # Of regress.
    inconclusive: float  # Of inconclusive.
    repetitions: float  # Mean number until the gate ended.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    effect: float  # True slowdown as a ratio.
    # The correct verdict: regress from ``delta`` on, pass below.
    verdict: Verdict
    # With one look and the wanted probability; None beyond ``MOST_REPETITIONS``.
    num_repetitions: int | None
    minutes: float | None  # Time to measure them, or None.


def _check(is_right: bool, message: str) -> None:
    if not is_right:
        raise errors.ResultsError(message)


def _check_spread(spread: float) -> None:
    _check(
        math.isfinite(spread) and spread > 0,
        f"spread is {spread!r}, must be positive and finite: the standard "
        "deviation of the log ratio over runs, such as 0.03",
    )


def _check_repetitions(number: int) -> None:
    _check(
        number >= group_sequential.FEWEST_REPETITIONS,
        f"num_repetitions is {number}, must be {group_sequential.FEWEST_REPETITIONS} or"
        " more: one says nothing about the spread between processes",
    )


def design(
    *,
    delta: float,
    alpha: float,
    num_repetitions: int | None = None,
    most: int | None = None,
) -> Design:
    group_sequential.check_delta(delta)
    group_sequential.check_alpha(alpha)
    if num_repetitions is not None:
        _check_repetitions(num_repetitions)
        last = num_repetitions
        looks = group_sequential.looks_until(last, ())
    else:
        planned = group_sequential.planned_looks(alpha)
        last = planned[-1]
        most = last if most is None else most
        _check_repetitions(most)
        looks = group_sequential.looks_until(min(most, last), planned)
    return group_sequential.Design(looks=looks, most=last, delta=delta, alpha=alpha)


@functools.lru_cache(maxsize=4)
def _draws(num_repetitions: int, num_cases: int) -> np.ndarray:
    generator = np.random.default_rng([_SEED, num_cases])
    return generator.standard_normal((NUM_GATES, num_repetitions, num_cases))


def operating_points(
    spread: float, effects: Sequence[float], rule: Design, *, num_cases: int = 1
) -> tuple[OperatingPoint, ...]:
    _check_spread(spread)
    _check(
        num_cases >= 1,
        f"num_cases is {num_cases}, must be 1 or more: those that the gate judges",
    )
    points = []
    for effect in effects:
        _check(
            math.isfinite(effect) and effect > -1,
            f"effect is {effect!r}, must be a ratio above -1: 0.05 is 5 % slower",
        )
        logs = spread * _draws(rule.looks[-1], num_cases)
        logs[..., -1] += math.log1p(effect)
        outcome = group_sequential.outcomes({group_sequential.BLOCKS: logs}, rule)
        passes = float((outcome.verdicts == group_sequential.PASSED).mean())
        regresses = float((outcome.verdicts == group_sequential.REGRESSED).mean())
        points.append(
            OperatingPoint(
                effect=effect,
                passes=passes,
                regresses=regresses,
                inconclusive=max(0.0, 1 - passes - regresses),
                repetitions=float(outcome.ends.mean()),
            )
        )
    return tuple(points)


def needed(
    effects: Sequence[float],
    *,
    spread: float,
    minutes_per_repetition: float,
    num_cases: int = 1,
    delta: float = group_sequential.DEFAULT_DELTA,
    alpha: float = group_sequential.DEFAULT_ALPHA,
) -> tuple[Need, ...]:
    """Returns what it takes to give each true effect its correct verdict."""
    _check(
        math.isfinite(minutes_per_repetition) and minutes_per_repetition > 0,
        f"minutes_per_repetition is {minutes_per_repetition!r}, must be positive "
        "and finite",
    )
    needs = []
    for effect in effects:

        def is_enough(number: int, effect: float = effect) -> bool:
            rule = design(delta=delta, alpha=alpha, num_repetitions=number)
            (point,) = operating_points(spread, [effect], rule, num_cases=num_cases)
            return (
                point.regresses if effect >= delta else point.passes
            ) >= DEFAULT_POWER

        number = _fewest(is_enough)
        needs.append(
            Need(
                effect=effect,
                verdict=Verdict.REGRESS if effect >= delta else Verdict.PASS,
                num_repetitions=number,
                minutes=None if number is None else number * minutes_per_repetition,
            )
        )
    return tuple(needs)


def _fewest(is_enough: Callable[[int], bool]) -> int | None:
    """Returns the fewest repetitions: doubling, then halving, since more find more."""
    high = group_sequential.FEWEST_REPETITIONS
    low = high - 1
    while not is_enough(high):
        if high == MOST_REPETITIONS:
            return None
        low, high = high, min(2 * high, MOST_REPETITIONS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def smallest_effect_found(
    spread: float, rule: Design, *, num_cases: int = 1
) -> float | None:
    """Returns the smallest slowdown of one case that a gate finds as a regression."""

    def is_found(effect: float) -> bool:
        (point,) = operating_points(spread, [effect], rule, num_cases=num_cases)
        return point.regresses >= DEFAULT_POWER

    if is_found(rule.delta):
        return rule.delta
    low, high, most = rule.delta, 2 * rule.delta, 99.0
    while not is_found(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > _SMALLEST_STEP:
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def median_half_width(spread: float, num_repetitions: int) -> float:
    """Returns the half width, as a logarithm, that half of all measurements reach."""
    from scipy import special

    _check_spread(spread)
    _check_repetitions(num_repetitions)
    degrees = num_repetitions - 1
    relative = math.sqrt(float(special.chdtri(degrees, 0.5)) / degrees)
    quantile = estimates.student_quantile(degrees)
    return quantile * spread * relative / math.sqrt(num_repetitions)
