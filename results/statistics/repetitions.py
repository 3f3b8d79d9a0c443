"""Interleaved ratios: over rounds within a repetition, then over repetitions.

A *repetition* is a fresh process of every case, all alive at once. In each *round*
every case takes one *block*, in random order, so the blocks that are divided lie
seconds apart and share most of the machine's noise.

Within a repetition the mean log ratio over rounds is one number, d_g. The interval is
Student's t over these numbers, because what one process has and the next has not (its
memory layout, the placement of its threads) differs only between repetitions; rounds
repeat it. Taking rounds for repetitions is precise and wrong: by simulation an interval
of 95 % over the rounds of one repetition holds the truth in 45 of 100 studies, one over
three repetitions in 95. Few repetitions can agree by
chance better than their rounds allow, so the interval is at least as wide as if
processes did not differ at all. Kalibera and Jones,
"Rigorous benchmarking in reasonable time" (ISMM 2013): repeat at every level that
varies by chance, and above all at the highest.

One repetition alone therefore has an interval for its own processes only, which is
shown and never judged.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from results import errors
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.statistics.estimates import Estimate, Mean

K = TypeVar("K")

OVER_REPETITIONS = (
    "Student's t over runs (fresh processes); each counts once, with its mean "
    "log over rounds"
)
OVER_ROUNDS = f"{OVER_REPETITIONS}; not narrower than the rounds imply"
NO_REPETITIONS = "no interval: one run says nothing about the spread between processes"
ONE_REPETITION = (
    "batch means over rounds, for these processes only: one run says nothing "
    "about the spread between processes"
)
TOO_FEW_ROUNDS = "no interval: one run of too few rounds says nothing about any spread"

STOPPED = "widened by 10 % because measuring stopped on its width"

FEWEST_TO_STOP = 5
"""Repetitions before a measurement may stop because its interval is short.

The interval is shortest where the repetitions happen to agree, so stopping on its width
favours such studies and loses coverage. Chow and Robbins, "On the asymptotic theory of
fixed-width sequential confidence intervals" (Annals of Mathematical Statistics 36,
1965), prove that the loss vanishes as the number of repetitions grows. From five it is
up to 0.03, at targets that take 10 to 20 repetitions.
"""

_WIDENING = 1.10
"""By which an interval is widened whose width decided on more than five repetitions.

Chosen by simulation: nominal 95 % intervals then hold the truth in 0.938 to 0.953 of
studies, whatever the target, and in 0.920 to 0.949 without it
(tests/validation/statistics repeats this). Studies that stop at five need none:
where all do, the number was fixed.
"""

FEWEST_BATCHES = 10
MOST_BATCHES = 30
"""Schmeiser, "Batch size effects in the analysis of simulation output" (Operations
Research 30, 1982): with ten batches intervals are hardly wider than with more, and
beyond 30 nothing is gained; but the shorter batches are, the more they depend on each
other, which makes intervals too short."""

_FEWEST_ROUNDS_PER_BATCH = 2


def mean(logs: Sequence[float]) -> float:
    """Returns d_g, the mean of the logarithms of a repetition's rounds."""
    return math.fsum(logs) / len(logs)


def log_ratios(
    first: Mapping[int, float], second: Mapping[int, float]
) -> tuple[float, ...]:
    """Returns ln(first / second) of each round that both have, in order of rounds."""
    for name, values in (("first", first), ("second", second)):
        for index, value in values.items():
            if not (math.isfinite(value) and value > 0):
                raise errors.ResultsError(
                    f"{name} has the value {value!r} in round {index}, must be "
                    "positive and finite; leave out blocks that are discarded"
                )
    rounds = sorted(first.keys() & second.keys())
    return tuple(math.log(first[index]) - math.log(second[index]) for index in rounds)


def over_repetitions(logs: Sequence[float]) -> Estimate:
    """Estimates exp(mean(logs)) with Student's t over repetitions."""
    return over_rounds([[log] for log in logs])


def mean_of_rounds(logs: Sequence[Sequence[float]]) -> Mean:
    """Returns the mean over repetitions, with an error that its rounds allow.

    Five repetitions can agree better than their rounds do: by chance, since a mean of
    20 rounds has an error of its own. So ``least`` has the error that remains if
    processes do not differ at all: the variance within repetitions, pooled.
    """
    means = [mean(of) for of in logs]
    found = estimates.one_group(means, "logs")
    degrees = sum(len(of) - 1 for of in logs)
    if not degrees:
        return found
    squares = math.fsum(
        (log - centre) ** 2
        for of, centre in zip(logs, means, strict=True)
        for log in of
    )
    error = math.sqrt(squares / degrees * math.fsum(1 / len(of) for of in logs))
    least = dataclasses.replace(
        found, standard_error=error / len(logs), degrees_of_freedom=degrees
    )
    return dataclasses.replace(found, least=least)


def over_rounds(
    logs: Sequence[Sequence[float]],
    *,
    unit: str = "",
    is_stopped_on_width: bool = False,
) -> Estimate:
    """Estimates exp(mean) over repetitions as ``mean_of_rounds`` does."""
    mean = mean_of_rounds(logs)
    factor = widening(mean.n, is_stopped_on_width=is_stopped_on_width)
    method = OVER_REPETITIONS if mean.least is None else OVER_ROUNDS
    found = mean.widened(factor).estimate(
        method if factor == 1 else f"{method}; {STOPPED}",
        otherwise=NO_REPETITIONS,
        unit=unit,
    )
    return estimates.from_logs(found)


def num_batches(num_rounds: int) -> int:
    """Returns how many batches of consecutive rounds have means that are compared.

    The square root of the number of rounds, so that batches get both longer and more
    numerous (Flegal and Jones, "Batch means and spectral variance estimators in Markov
    chain Monte Carlo", Annals of Statistics 38, 2010), but from 10 to 30; and a batch
    has at least two rounds. Returns 0 below four rounds, which give no two batches.
    """
    wanted = min(max(math.isqrt(num_rounds), FEWEST_BATCHES), MOST_BATCHES)
    possible = num_rounds // _FEWEST_ROUNDS_PER_BATCH
    number = min(wanted, possible)
    return number if number >= estimates.FEWEST_FOR_INTERVAL else 0


def these_processes_only(logs_by_round: Sequence[float], *, unit: str = "") -> Estimate:
    """Estimates exp(mean) of one repetition, with an interval for its processes only.

    The rounds are cut into batches of consecutive ones, whose lengths differ by at most
    one, and Student's t is taken over their means: noise that lasts for several rounds
    widens it. Other processes have other means, so the estimate is not conclusive: it
    excludes no value.
    """
    logs = estimates.finite(logs_by_round, "logs_by_round")
    number = num_batches(logs.size)
    batches = np.array_split(logs, number) if number else [logs]
    mean = estimates.one_group([float(batch.mean()) for batch in batches])
    mean = dataclasses.replace(mean, centre=float(logs.mean()), n=1)
    found = mean.estimate(ONE_REPETITION, otherwise=TOO_FEW_ROUNDS, unit=unit)
    return dataclasses.replace(estimates.from_logs(found), is_conclusive=False)


def widening(num_repetitions: int, *, is_stopped_on_width: bool = True) -> float:
    """Returns the factor of an interval, above 1 if its width decided when to stop."""
    is_widened = is_stopped_on_width and num_repetitions > FEWEST_TO_STOP
    return _WIDENING if is_widened else 1.0


def is_precise_enough(logs: Sequence[Sequence[float]], target: float) -> bool:
    """Returns whether measuring may stop because the interval is short enough."""
    if not (math.isfinite(target) and target > 0):
        raise errors.ResultsError(
            f"target is {target!r}, must be a positive ratio, such as 0.03 for 3 %"
        )
    if len(logs) < FEWEST_TO_STOP:
        return False
    mean = mean_of_rounds(logs)
    half = mean.half_width()
    return half is not None and widening(mean.n) * half <= math.log1p(target)


# Each interval covers the truth in 95 % of studies by itself. Of twenty, one is
# expected to miss, so a difference that is picked out of a set needs stronger evidence.
# Holm's procedure (Scandinavian Journal of Statistics 6, 1979) keeps the probability of
# even one false difference at ``alpha``, whatever the dependence between the
# comparisons: the smallest of m p-values is multiplied by m, the next by m - 1, and so
# on, and no adjusted value is below the one before it.
#
# An interval may therefore exclude 1 where the difference does not hold within the set.

DEFAULT_ALPHA = 0.05


def holm(p_values: Mapping[K, float | None]) -> dict[K, float]:
    """Returns p-values adjusted for their number; None is no test, and left out."""
    tested = {key: value for key, value in p_values.items() if value is not None}
    for value in tested.values():
        if not 0 <= value <= 1:
            raise errors.ResultsError(
                f"p_values holds {value!r}, all must be from 0 to 1"
            )
    values = np.asarray([*tested.values()], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = values.size - np.arange(values.size)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return dict(zip(tested, adjusted.tolist(), strict=True))
