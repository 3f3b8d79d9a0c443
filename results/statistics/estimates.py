"""An estimate: a value with its interval, and Student's t, from which most come.

An interval is over what is repeated (trials, repetitions, seeds), never over steps, and
covers the truth in 95 % of studies by itself, not together with others. Two groups that
share no rounds are compared by Welch's t (Biometrika 34, 1947), with Satterthwaite's
degrees of freedom (Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from results import errors

K = TypeVar("K")

CONFIDENCE = 0.95
FEWEST_FOR_INTERVAL = 2
_LARGEST_LOGARITHM = 690.0  # e**690 is 1e299


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure with its uncertainty."""

    value: float  # Infinite where it is beyond what was measured.
    low: float | None  # Of the interval; None where there is none.
    high: float | None
    n: int  # Number of repetitions; of the smaller group if there are two.
    unit: str  # Of the three numbers; empty for a ratio.
    method: str  # How the interval was computed, or why there is none.
    confidence: float = CONFIDENCE  # Nominal coverage of the interval.
    # Whether it holds for other processes too; otherwise it excludes nothing.
    is_conclusive: bool = True
    is_disturbed: bool = False  # Whether all of it was measured beside load of others.

    @property
    def has_interval(self) -> bool:
        """Whether there are enough repetitions for an interval."""
        return self.low is not None

    @property
    def caveat(self) -> str:
        """Why it is no evidence, or has no interval; empty if it is evidence."""
        if not self.has_interval:
            return "one run: no interval"
        if self.is_disturbed:
            return "beside load: no evidence"
        return "" if self.is_conclusive else "these processes only"

    def excludes(self, value: float) -> bool:
        """Whether there is an interval that may be judged, and not around ``value``."""
        if not self.is_conclusive or self.low is None or self.high is None:
            return False
        return not self.low <= value <= self.high

    @property
    def inverse(self) -> Estimate:
        """The ratio of the second to the first."""
        low, high = self.low, self.high
        ends: tuple[float | None, float | None] = (None, None)
        if low is not None and high is not None and low > 0:
            ends = 1 / high, 1 / low
        return dataclasses.replace(
            self, value=1 / self.value, low=ends[0], high=ends[1]
        )

    def scaled(self, factor: float) -> Estimate:
        """Returns the estimate times a positive constant."""
        return dataclasses.replace(
            self,
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )


def from_logs(estimate: Estimate) -> Estimate:
    exps: dict[str, Any] = {
        # Two very different repetitions can exceed the range of floats.
        name: math.exp(min(logarithm, _LARGEST_LOGARITHM))
        for name in ("value", "low", "high")
        if (logarithm := getattr(estimate, name)) is not None
    }
    return dataclasses.replace(estimate, **exps)


def student_quantile(
    degrees_of_freedom: float, *, confidence: float = CONFIDENCE
) -> float:
    """Returns the half width of Student's t interval in standard errors."""
    from scipy import special  # a tenth of the import time of scipy.stats

    tail = 1 - (1 - confidence) / 2
    return float(special.stdtrit(degrees_of_freedom, tail))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean, or the difference of two, whose error has Student's distribution."""

    centre: float  # The mean.
    # Of ``centre``; None where one value says nothing about the spread.
    standard_error: float | None
    degrees_of_freedom: float  # Of the distribution; not an integer for two groups.
    n: int  # Values; of the smaller group if there are two.
    # The same by another estimate of its error; intervals are not narrower.
    least: Mean | None = None

    def widened(self, factor: float) -> Mean:
        """Returns the same with a larger error, in its interval and in its test."""
        if self.standard_error is None:
            return self
        return dataclasses.replace(
            self,
            standard_error=factor * self.standard_error,
            least=None if self.least is None else self.least.widened(factor),
        )

    def half_width(self, confidence: float = CONFIDENCE) -> float | None:
        """Returns half the interval, or None where there is none."""
        if self.standard_error is None:
            return None
        quantile = student_quantile(self.degrees_of_freedom, confidence=confidence)
        half = quantile * self.standard_error if self.standard_error else 0.0
        least = None if self.least is None else self.least.half_width(confidence)
        return half if least is None else max(half, least)

    def estimate(
        self,
        method: str,
        *,
        otherwise: str = "",
        unit: str = "",
        confidence: float = CONFIDENCE,
    ) -> Estimate:
        """Returns the mean with its interval."""
        half = self.half_width(confidence)
        return Estimate(
            value=self.centre,
            low=None if half is None else self.centre - half,
            high=None if half is None else self.centre + half,
            n=self.n,
            unit=unit,
            method=otherwise if half is None else method,
            confidence=confidence,
        )

    def p_value(self) -> float | None:
        """Returns the two-sided p-value of the test that the mean is 0, or None."""
        from scipy import special

        if self.standard_error is None:
            return None
        least = None if self.least is None else self.least.p_value()
        if self.standard_error == 0:
            own = 1.0 if self.centre == 0 else 0.0
        else:
            statistic = -abs(self.centre) / self.standard_error
            own = 2 * float(special.stdtr(self.degrees_of_freedom, statistic))
        return own if least is None else max(own, least)


def one_group(values: Sequence[float] | np.ndarray, name: str = "values") -> Mean:
    """Returns the mean of values that do not depend on each other, with its error.

    One value has no error. Raises ResultsError, with ``name``, for values that are not
    a sequence of one or more finite numbers.
    """
    array = finite(values, name)
    error = None
    if array.size >= FEWEST_FOR_INTERVAL:
        error = float(array.std(ddof=1)) / math.sqrt(array.size)
    return Mean(
        centre=float(array.mean()),
        standard_error=error,
        degrees_of_freedom=array.size - 1,
        n=array.size,
    )


def two_groups(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray
) -> Mean:
    """Returns mean(first) - mean(second) of groups that are not paired (Welch's t).

    There is no error where either group has one value. Raises as ``one_group``.
    """
    here, there = finite(first, "first"), finite(second, "second")
    n = min(here.size, there.size)
    centre = float(here.mean() - there.mean())
    if n < FEWEST_FOR_INTERVAL:
        return Mean(centre=centre, standard_error=None, degrees_of_freedom=0, n=n)
    part_here = float(here.var(ddof=1)) / here.size
    part_there = float(there.var(ddof=1)) / there.size
    total = part_here + part_there
    degrees = 1.0
    if total > 0:
        degrees = total**2 / (
            part_here**2 / (here.size - 1) + part_there**2 / (there.size - 1)
        )
    return Mean(
        centre=centre, standard_error=math.sqrt(total), degrees_of_freedom=degrees, n=n
    )


def finite(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    array = _array(values, name)
    if not np.isfinite(array).all():
        raise errors.ResultsError(
            f"{name} holds {values!r}, all must be finite; what failed must be left "
            "out, and reported"
        )
    return array


def _array(values: Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise errors.ResultsError(
            f"{name} is {values!r}, must be a sequence of one or more numbers"
        )
    return array


# The mean logarithm over trials: all comparisons are ratios, so S(n) and 1/S(n) get the
# same evidence. Its interval is Student's t; of cases that do not have the same
# repetitions, Welch's. Coverage at 95 % on lognormal noise, for n = 3, 5, 10: 0.95 to
# 0.96. Resampling three values gives only ten averages: the percentile bootstrap covers
# 0.74, 0.84, 0.91, BCa 0.71, 0.84, 0.90.
PERCENTILE_COVERAGE = 0.74
"""Measured coverage at n = 3 of the usual percentile bootstrap."""

SKEWED_COVERAGE = 0.90
"""Measured coverage at n = 3 of this module under exponential noise."""

ONE_GROUP = "Student's t of log values over repetitions"
PAIRED = "Student's t of paired log ratios over repetitions"
TWO_GROUPS = "Welch's t of log values, unpaired groups"
NO_INTERVAL = "no interval: one repetition gives no information on the spread"


def geometric_mean(values: Sequence[float], *, unit: str) -> Estimate:
    """Estimates exp(mean(log(values))) with Student's interval over ``values``.

    ``unit`` is that of the values. Raises ResultsError unless all are positive and
    finite.
    """
    mean = one_group(_logs(values, "values"))
    return from_logs(mean.estimate(ONE_GROUP, otherwise=NO_INTERVAL, unit=unit))


def ratio(numerator: Mapping[K, float], denominator: Mapping[K, float]) -> Estimate:
    """Estimates the ratio of two geometric means, both uncertain.

    Values are by repetition. Two sides with the same repetitions are paired by them,
    so that what both have in common cancels; others are two groups (Welch's t). Raises
    as ``geometric_mean``.
    """
    is_paired = numerator.keys() == denominator.keys()
    mean = mean_log_ratio(numerator, denominator)
    method = PAIRED if is_paired else TWO_GROUPS
    return from_logs(mean.estimate(method, otherwise=NO_INTERVAL))


def mean_log_ratio(
    numerator: Mapping[K, float], denominator: Mapping[K, float]
) -> Mean:
    """Returns the mean log ratio over repetitions, in pairs if both have the same."""
    first = _logs([*numerator.values()], "numerator")
    if numerator.keys() != denominator.keys():
        return two_groups(first, _logs([*denominator.values()], "denominator"))
    return one_group(first - _logs([denominator[k] for k in numerator], "denominator"))


def _logs(values: Sequence[float], name: str) -> np.ndarray:
    array = _array(values, name)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise errors.ResultsError(
            f"{name} holds {values!r}, all must be positive and finite; trials whose "
            "sanity checks failed must be left out"
        )
    return np.log(array)


# A *repetition* is a fresh process of every case, all alive at once. In each *round*
# every case takes one *block*, so blocks that are divided share most of the noise. The
# mean log ratio over rounds is one number of a repetition, and the interval is
# Student's t over these: what one process has and the next has not (memory layout,
# placement of threads) differs between repetitions only. Of 95 % intervals over the
# rounds of one repetition, 45 in 100 hold the truth, over three repetitions 95
# (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). One
# repetition alone has an interval for its own processes, which is shown and never
# judged.

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
"""Before a measurement may stop on its width, which favours repetitions that agree. The
loss of coverage vanishes as they grow (Chow and Robbins 1965); from five it is 0.03."""

_WIDENING = 1.10
"""Of intervals whose width decided, from six repetitions on. Simulated, they hold the
truth in 0.938 to 0.953 of studies, and in 0.920 to 0.949 without it."""

FEWEST_BATCHES = 10
MOST_BATCHES = 30
"""Beyond 30 nothing is gained, and short batches depend on each other (Schmeiser,
Operations Research 30, 1982); between, their number is the square root (Flegal and
Jones, Annals of Statistics 38, 2010)."""

_FEWEST_ROUNDS_PER_BATCH = 2


def mean(logs: Sequence[float]) -> float:
    """Returns d_g, the mean of the logarithms of a repetition's rounds."""
    return math.fsum(logs) / len(logs)


def log_ratios(
    first: Mapping[int, float], second: Mapping[int, float]
) -> tuple[float, ...]:
    """Returns ln(first / second) of each round that both have, in order of rounds."""
    rounds = sorted(first.keys() & second.keys())
    return tuple(math.log(first[index]) - math.log(second[index]) for index in rounds)


def over_repetitions(logs: Sequence[float]) -> Estimate:
    """Estimates exp(mean) of one log per repetition; Student's t over these."""
    return over_rounds([[log] for log in logs])


def mean_of_rounds(logs: Sequence[Sequence[float]]) -> Mean:
    """Returns the mean over repetitions, with an error that its rounds allow.

    Five repetitions can agree better than that by chance. So ``least`` has the error if
    processes do not differ at all: the variance within repetitions, pooled.
    """
    means = [mean(group) for group in logs]
    over_runs = one_group(means, "logs")
    degrees = sum(len(group) - 1 for group in logs)
    if not degrees:
        return over_runs
    squares = math.fsum(
        (log - centre) ** 2
        for group, centre in zip(logs, means, strict=True)
        for log in group
    )
    error = math.sqrt(squares / degrees * math.fsum(1 / len(group) for group in logs))
    least = dataclasses.replace(
        over_runs, standard_error=error / len(logs), degrees_of_freedom=degrees
    )
    return dataclasses.replace(over_runs, least=least)


def over_rounds(
    logs: Sequence[Sequence[float]],
    *,
    unit: str = "",
    is_stopped_on_width: bool = False,
) -> Estimate:
    """Estimates exp(mean) over repetitions as ``mean_of_rounds`` does.

    ``logs`` has the logarithms of the rounds of each repetition. ``unit`` is that of
    their exponentials. An interval that decided when measuring stopped
    (``is_stopped_on_width``) is 10 % wider from six repetitions on.
    """
    mean = mean_of_rounds(logs)
    factor = widening(mean.n, is_stopped_on_width=is_stopped_on_width)
    method = OVER_REPETITIONS if mean.least is None else OVER_ROUNDS
    estimate = mean.widened(factor).estimate(
        method if factor == 1 else f"{method}; {STOPPED}",
        otherwise=NO_REPETITIONS,
        unit=unit,
    )
    return from_logs(estimate)


def num_batches(num_rounds: int) -> int:
    """Returns how many batches of two rounds or more are compared, 0 for none."""
    wanted = min(max(math.isqrt(num_rounds), FEWEST_BATCHES), MOST_BATCHES)
    possible = num_rounds // _FEWEST_ROUNDS_PER_BATCH
    number = min(wanted, possible)
    return number if number >= FEWEST_FOR_INTERVAL else 0


def these_processes_only(logs_by_round: Sequence[float], *, unit: str = "") -> Estimate:
    """Estimates exp(mean) of the rounds of one repetition, for its processes only.

    The interval is Student's t of 10 to 30 batches of consecutive rounds, since rounds
    depend on each other; there is none of fewer than four rounds. It excludes nothing:
    the next processes may differ.
    """
    logs = finite(logs_by_round, "logs_by_round")
    number = num_batches(logs.size)
    batches = np.array_split(logs, number) if number else [logs]
    mean = one_group([float(batch.mean()) for batch in batches])
    mean = dataclasses.replace(mean, centre=float(logs.mean()), n=1)
    estimate = mean.estimate(ONE_REPETITION, otherwise=TOO_FEW_ROUNDS, unit=unit)
    return dataclasses.replace(from_logs(estimate), is_conclusive=False)


def widening(num_repetitions: int, *, is_stopped_on_width: bool = True) -> float:
    is_widened = is_stopped_on_width and num_repetitions > FEWEST_TO_STOP
    return _WIDENING if is_widened else 1.0


def is_precise_enough(logs: Sequence[Sequence[float]], target: float) -> bool:
    """Returns whether measuring may stop because the interval is short enough.

    ``logs`` are those of ``over_rounds``. From five repetitions on, it is whether the
    interval that would be reported is within a part ``target`` of its value.
    """
    if len(logs) < FEWEST_TO_STOP:
        return False
    mean = mean_of_rounds(logs)
    half = mean.half_width()
    return half is not None and widening(mean.n) * half <= math.log1p(target)


# Holm's procedure (Scandinavian Journal of Statistics 6, 1979) keeps the probability of
# one false difference in a set at ``alpha``: the smallest of m p-values times m, the
# next times m - 1, and none below the one before. An interval may exclude 1 all the
# same.
DEFAULT_ALPHA = 0.05


def holm(p_values: Mapping[K, float | None]) -> dict[K, float]:
    """Returns p-values adjusted for their number by Holm's procedure, by their keys.

    Whatever is below a level has at most that probability of holding one false
    difference. None is no test, and left out.
    """
    tested = {key: value for key, value in p_values.items() if value is not None}
    values = np.asarray([*tested.values()], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = values.size - np.arange(values.size)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return dict(zip(tested, adjusted.tolist(), strict=True))
