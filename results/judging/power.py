"""What a gate can find: the share of each verdict, and what more precision costs.

Shares are of simulated gates that follow the rule of the gate itself, with fixed draws.
The log slowdown of a repetition is normal with the same standard deviation in every
case, and the change is in one of them. Sustained stretches are left out.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from results import errors
from results.statistics import estimates, group_sequential
from results.statistics.group_sequential import Design, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_POWER = 0.9
"""A true slowdown is found in 9 of 10 gates."""
MOST_REPETITIONS = 200
"""Searches end here: at two minutes each, a night."""
NUM_GATES = 2000
"""A share of one half is known within 0.022 (95 %), one of 0.95 within 0.010."""
_SEED = 20_260_711
_SMALLEST_STEP = 1e-3  # of an effect that is searched
_MOST_EFFECT = 99.0


class OperatingPoint(NamedTuple):
    # True slowdown of one case as a ratio: 0.05 is 5 % slower, -0.05 is faster.
    effect: float
    passes: float  # Share of gates.
    regresses: float
    inconclusive: float
    repetitions: float  # Mean number until the gate ended.


class Need(NamedTuple):
    effect: float  # True slowdown as a ratio.
    # The correct verdict: regress from ``delta`` on, pass below.
    verdict: Verdict
    # With one look and the wanted probability; None beyond ``MOST_REPETITIONS``.
    num_repetitions: int | None
    minutes: float | None  # Time to measure them, or None.


def _check_spread(spread: float) -> None:
    if not (math.isfinite(spread) and spread > 0):
        raise errors.ResultsError(
            f"spread is {spread!r}, must be positive and finite: the standard "
            "deviation of the log ratio over runs, such as 0.03"
        )


def design(
    *,
    delta: float,
    alpha: float,
    num_repetitions: int | None = None,
    most: int | None = None,
) -> Design:
    """Returns the rule of a gate with one look, or of one with time for ``most``."""
    group_sequential.check_delta(delta)
    group_sequential.check_alpha(alpha)
    planned = group_sequential.planned_looks(alpha) if num_repetitions is None else ()
    last = planned[-1] if num_repetitions is None else num_repetitions
    number = last if most is None else min(most, last)
    if number < group_sequential.FEWEST_REPETITIONS:
        raise errors.ResultsError(
            f"num_repetitions is {number}, must be"
            f" {group_sequential.FEWEST_REPETITIONS} or more: one says nothing about"
            " the spread between processes"
        )
    looks = group_sequential.looks_until(number, planned)
    return Design(looks=looks, most=last, delta=delta, alpha=alpha)


@functools.lru_cache(maxsize=4)
def _draws(num_repetitions: int, num_cases: int) -> np.ndarray:
    generator = np.random.default_rng([_SEED, num_cases])
    return generator.standard_normal((NUM_GATES, num_repetitions, num_cases))


def operating_points(
    spread: float, effects: Sequence[float], rule: Design, *, num_cases: int = 1
) -> tuple[OperatingPoint, ...]:
    _check_spread(spread)
    points = []
    for effect in effects:
        logs = spread * _draws(rule.looks[-1], num_cases)
        logs[..., -1] += math.log1p(effect)
        outcome = group_sequential.outcomes({group_sequential.BLOCKS: logs}, rule)
        passes, regresses = (
            float((outcome.verdicts == verdict).mean())
            for verdict in (group_sequential.PASSED, group_sequential.REGRESSED)
        )
        rest, ends = max(0.0, 1 - passes - regresses), float(outcome.ends.mean())
        points.append(OperatingPoint(effect, passes, regresses, rest, ends))
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
    needs = []
    for effect in effects:
        is_slower = effect >= delta

        def is_enough(
            number: float, effect: float = effect, *, is_slower: bool = is_slower
        ) -> bool:
            rule = design(delta=delta, alpha=alpha, num_repetitions=int(number))
            (point,) = operating_points(spread, [effect], rule, num_cases=num_cases)
            return (point.regresses if is_slower else point.passes) >= DEFAULT_POWER

        fewest = group_sequential.FEWEST_REPETITIONS
        least = _least(is_enough, fewest - 1, fewest, MOST_REPETITIONS, step=1)
        number = None if least is None else int(least)
        minutes = None if least is None else least * minutes_per_repetition
        verdict = Verdict.REGRESS if is_slower else Verdict.PASS
        needs.append(Need(effect, verdict, number, minutes))
    return tuple(needs)


def smallest_effect_found(
    spread: float, rule: Design, *, num_cases: int = 1
) -> float | None:
    """Returns the smallest slowdown of one case that a gate finds as a regression."""

    def is_found(effect: float) -> bool:
        (point,) = operating_points(spread, [effect], rule, num_cases=num_cases)
        return point.regresses >= DEFAULT_POWER

    if is_found(rule.delta):
        return rule.delta
    return _least(is_found, rule.delta, 2 * rule.delta, _MOST_EFFECT, _SMALLEST_STEP)


def _least(
    is_enough: Callable[[float], bool],
    low: float,
    high: float,
    most: float,
    step: float,
) -> float | None:
    """Returns the least number that is enough, within a step: more are enough too."""
    while not is_enough(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > step:
        middle = (low + high) / 2 if step < 1 else (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def median_half_width(spread: float, num_repetitions: int) -> float:
    """Returns the half width, as a logarithm, that half of all measurements reach."""
    from scipy import special

    _check_spread(spread)
    degrees = num_repetitions - 1
    relative = math.sqrt(float(special.chdtri(degrees, 0.5)) / degrees)
    quantile = estimates.student_quantile(degrees)
    return quantile * spread * relative / math.sqrt(num_repetitions)
