"""The rule of a gate that looks several times, for all of its cases at once.

Of each case and kind of measurement, the log slowdown of a repetition is one number,
positive where the change is slower. Its mean over n repetitions has the interval

    [m - t(r) w s / sqrt(n), m + t(p) w s / sqrt(n)]

with the levels that a spending function leaves for this look: p spends ``alpha`` on
passing a slowdown of exactly the margin, r the kind's share of it on calling equal
programs slower, divided by the cases that are not yet known to be slower (Holm). ``w``
is the ``widening`` for repetitions that depend on each other.

What slows one repetition in five is unseen in n of them with probability 0.8^n,
whatever the rule, so a case passes only after ``fewest_to_pass``. It regresses where
the lower end is above 0 and it did not pass. The gate ends with the first regression,
or when all have passed. Single slow processes are judged by a sign test: of equal
programs, a repetition that stands out does so to either side with probability 1/2.

Arrays have repetitions and cases as last axes, so that the rule itself is simulated:
what it can find, and, by ``make statistics``, how often it errs.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from results import errors
from results.statistics import estimates

if TYPE_CHECKING:
    from results.statistics.estimates import Estimate, Mean


# A *spending function* says which part of the error may be spent until each look, and
# from it follow the levels of the single tests (Lan and DeMets, Biometrika 70, 1983),
# here a power of the information (Kim and DeMets, Biometrika 74, 1987): early looks
# know spreads badly and err most. The probability to cross a boundary for the first
# time is integrated over Brownian motion (Armitage, McPherson and Rowe, JRSS A 132,
# 1969). With an estimated spread each is the level of a t test, which ``make
# statistics`` simulates.
_NUM_NODES = 160
_POWER = 1.5
_LOWEST = -8.5  # standard deviations, below which nothing is left
_NUM_HALVINGS = 60


@functools.lru_cache(maxsize=512)
def nominal_levels(
    looks: tuple[int, ...], most: int, alpha: float
) -> tuple[float, ...]:
    """Returns the one-sided level of the test at each look.

    ``looks`` are the numbers of repetitions, ascending, ``most`` is after how many all
    of ``alpha`` is spent. The probability to cross a level by look n is
    ``alpha * (n / most) ** 1.5``.
    """
    from scipy import special

    levels: list[float] = []
    nodes, masses = np.zeros(1), np.ones(1)  # all paths start at zero
    before, spent = 0.0, 0.0
    for look in looks:
        now = look / most
        step = math.sqrt(now - before)
        wanted = max(alpha * min(now, 1.0) ** _POWER - spent, 0.0)

        low, high = _LOWEST * math.sqrt(now), -_LOWEST * math.sqrt(now)
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            crossing = float(masses @ special.ndtr((nodes - middle) / step))
            low, high = (middle, high) if crossing > wanted else (low, middle)
        bound = (low + high) / 2
        levels.append(float(special.ndtr(-bound / math.sqrt(now))))
        lowest = _LOWEST * math.sqrt(now)
        new, weights = np.polynomial.legendre.leggauss(_NUM_NODES)  # a quadrature
        half = (bound - lowest) / 2
        new, weights = (lowest + bound) / 2 + half * new, half * weights
        steps = (new[:, None] - nodes[None, :]) / step
        density = np.exp(-(steps**2) / 2) / (step * math.sqrt(2 * math.pi))
        nodes, masses = new, weights * (density @ masses)
        before, spent = now, spent + wanted
    return tuple(levels)


def looks_until(number: int, planned: Sequence[int]) -> tuple[int, ...]:
    """Returns the looks of a gate that ended after so many repetitions."""
    return (*(look for look in planned if look < number), number)


RARE = 0.2
"""The share of repetitions in which a change may be slow, and must be seen to be."""
OF_PASSING = 0.5
"""Share of ``alpha`` that the levels of passing spend: t tests on skewed noise err
twice as often as their levels say (``make statistics``)."""
STANDS_OUT = 4.0
"""Robust standard deviations from 0, and at least the margin."""
FEWEST_TO_JUDGE = 3
"""Repetitions: two are as often far from 0 as two states of a machine are."""
MOST_ASSUMED = 0.5
"""The largest correlation between repetitions that is assumed without being seen."""
_NORMAL_DEVIATION = 1.4826  # of the median absolute deviation
_UPPER = 1.28  # standard errors: a bound at 90 %
_MOST_SEEN = 0.95
_EARLY = (4, 5, 6, 8, 10, 12, 16, 20, 24)

# What arrays hold in place of verdicts.
UNDECIDED = 0
PASSED = 1
REGRESSED = 2
IMPROVED = 3


def fewest_to_pass(alpha: float) -> int:
    """Returns how many repetitions show with 1 - alpha what slows one in five."""
    return math.ceil(math.log(alpha) / math.log(1 - RARE)) + 1


def planned_looks(alpha: float) -> tuple[int, ...]:
    """Returns after how many repetitions a gate looks; with less time, after fewer."""
    fewest = fewest_to_pass(alpha)
    early = (look for look in _EARLY if look < fewest)
    return (*early, fewest, fewest + 2)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What is measured of a change and its baseline, and what it counts for."""

    name: str  # What is compared.
    share: float  # Of ``alpha``: the probability that equal programs regress by it.
    # The slowdown that matters over ``delta``; None where it only regresses.
    margins: float | None


BLOCKS = Kind(name="blocks", share=0.6, margins=1.0)
SUSTAINED = Kind(name="sustained mean", share=0.1, margins=3.0)
TAIL = Kind(name="sustained 99th percentile", share=0.05, margins=None)
SINGLE = Kind(name="single processes", share=0.15, margins=None)
PROCESSES = Kind(name="processes", share=0.6, margins=1.0)
"""One number per process, where there are no blocks."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """When a gate looks, and how strictly; decided before it measures."""

    looks: tuple[int, ...]  # After how many repetitions: all looks so far and to come.
    most: int  # Repetitions after which all error is spent.
    delta: float  # The slowdown that matters, as a ratio.
    alpha: float  # The accepted probability of passing it, and of a false regression.

    def level(self, share: float, number: int) -> float:
        """Returns the one-sided level of a share of ``alpha`` at one look."""
        levels = nominal_levels(self.looks, self.most, share * self.alpha)
        return levels[self.looks.index(number)]

    def level_of_passing(self, number: int) -> float:
        """Returns the same of passing, of which no look before the first spends any."""
        fewest = fewest_to_pass(self.alpha)
        looks = tuple(look for look in self.looks if look >= fewest)
        alpha = OF_PASSING * self.alpha
        if number not in looks:
            return alpha
        return nominal_levels(looks, self.most, alpha)[looks.index(number)]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one kind of measurement says at one look; arrays over gates and cases."""

    mean: np.ndarray  # Mean log slowdown.
    low: np.ndarray  # Lower end of its interval; not a number below two repetitions.
    high: np.ndarray  # Upper end.
    verdicts: np.ndarray  # ``UNDECIDED``, ``PASSED``, ``REGRESSED`` or ``IMPROVED``.
    widening: np.ndarray  # Of the intervals, of all cases of a gate.


def widening(away: np.ndarray) -> np.ndarray:
    """Returns the factor of intervals, of repetitions that may depend on each other.

    The correlation of neighbours, over all cases, is too low by (1 + 4 r) / n (Marriott
    and Pope, Biometrika 41, 1954). Its error is of as many series as there are cases,
    or of fewer, down to one, by what they share in a repetition.
    """
    number, num_cases = away.shape[-2:]
    total = np.maximum((away**2).sum(axis=(-2, -1)), np.finfo(np.float64).tiny)
    lag_one = (away[..., 1:, :] * away[..., :-1, :]).sum(axis=(-2, -1)) / total
    lag_one = lag_one + (1 + 4 * lag_one) / number
    common = num_cases * (away.mean(axis=-1) ** 2).sum(axis=-1) / total
    num_series = 1 / (common**2 + (1 - common) ** 2 / max(num_cases - 1, 1))
    bound = lag_one + _UPPER / np.sqrt(number * num_series)
    correlation = np.maximum(
        np.clip(bound, 0, MOST_ASSUMED), np.clip(lag_one, 0, _MOST_SEEN)
    )
    lags = np.arange(1, number)
    powers = (1 - lags / number) * correlation[..., None] ** lags
    variance = 1 + 2 * powers.sum(axis=-1)
    # The measured variance is as much too small as that of the mean is too large.
    measured = 1 - (variance - 1) / max(number - 1, 1)
    widened: np.ndarray = np.sqrt(variance / np.maximum(measured, 0.05))
    return widened


def look(logs: np.ndarray, kind: Kind, design: Design, *, number: int) -> Look:
    """Judges the first ``number`` repetitions of gates, which is one of their looks.

    ``logs`` are log slowdowns of one kind, with repetitions and cases as last axes; NaN
    is a repetition that one side does not have.
    """
    from scipy import special

    values = logs[..., :number, :]
    counts = (~np.isnan(values)).sum(axis=-2)
    is_known = counts >= 2  # noqa: PLR2004 - a spread needs two
    mean = np.nansum(values, axis=-2) / np.maximum(counts, 1)
    away = np.nan_to_num(values - mean[..., None, :])
    wider = widening(away)
    counts = np.maximum(counts, 2)
    degrees = counts - 1
    error = wider[..., None] * np.sqrt((away**2).sum(axis=-2) / degrees / counts)
    num_cases = values.shape[-1]
    levels = [
        design.level(kind.share / (num_cases - index), number)
        for index in range(num_cases)
    ]
    strict = special.stdtrit(degrees, 1 - levels[0]) * error
    low = mean - strict
    high = mean + special.stdtrit(degrees, 1 - design.level_of_passing(number)) * error
    passed = np.zeros(high.shape, dtype=bool)
    if kind.margins is not None:
        passed = high < math.log1p(kind.margins * design.delta)
    passed &= counts >= fewest_to_pass(design.alpha)
    verdicts = np.full(mean.shape, UNDECIDED)
    verdicts[_holm(mean, error, degrees, levels) & (mean > 0)] = REGRESSED
    verdicts[passed] = PASSED
    verdicts[passed & (mean + strict < 0)] = IMPROVED
    verdicts[counts < FEWEST_TO_JUDGE] = UNDECIDED
    return Look(
        mean=mean,
        low=np.where(is_known, low, np.nan),
        high=np.where(is_known, high, np.nan),
        verdicts=verdicts,
        widening=wider,
    )


def _holm(
    mean: np.ndarray, error: np.ndarray, degrees: np.ndarray, levels: Sequence[float]
) -> np.ndarray:
    """Whether cases are slower: the smallest p-value at the first level, and so on."""
    from scipy import special

    tiny = np.finfo(np.float64).tiny
    p_values = special.stdtr(degrees, -mean / np.maximum(error, tiny))
    order = np.argsort(p_values, axis=-1)
    ordered = np.take_along_axis(p_values, order, axis=-1)
    holds = np.logical_and.accumulate(ordered <= np.asarray(levels), axis=-1)
    adjusted = np.zeros_like(holds)
    np.put_along_axis(adjusted, order, holds, axis=-1)
    return adjusted


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns the median of what is a number, 0 where nothing is; keeps the axis."""
    if not np.isnan(values).any():
        median: np.ndarray = np.median(values, axis=axis, keepdims=True)
        return median
    is_known = ~np.isnan(values).all(axis=axis, keepdims=True)
    return np.nanmedian(np.where(is_known, values, 0.0), axis=axis, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Singles:
    """Repetitions that stand out, each once: its cases share a machine; over gates."""

    threshold: np.ndarray  # Log ratio from which a process stands out.
    num_slower: np.ndarray  # Repetitions with more that are slower, of the change.
    # Repetitions with more that are faster, of the baseline slower.
    num_faster: np.ndarray
    p_value: np.ndarray  # Of so many or more slower ones, were the programs equal.
    holds: np.ndarray  # Whether the change has slow processes.


def singles(logs: np.ndarray, design: Design, *, number: int) -> Singles:
    """Judges at one look whether single processes of the change are slow."""
    from scipy import special

    values = logs[..., :number, :]
    residuals = np.abs(values - _median(values, axis=-2))
    flat = residuals.reshape(*values.shape[:-2], -1)
    scale = _NORMAL_DEVIATION * np.squeeze(_median(flat, axis=-1), axis=-1)
    threshold = np.maximum(STANDS_OUT * scale, math.log1p(design.delta))
    limit = threshold[..., None, None]
    more = (values > limit).sum(axis=-1) - (values < -limit).sum(axis=-1)
    slower, faster = (more > 0).sum(axis=-1), (more < 0).sum(axis=-1)
    both = slower + faster
    # Of so many or more: 1 for none.
    p_value = np.where(
        slower > 0, special.bdtrc(slower - 1, np.maximum(both, 1), 0.5), 1.0
    )
    return Singles(
        threshold=threshold,
        num_slower=slower,
        num_faster=faster,
        p_value=p_value,
        holds=p_value <= design.level(SINGLE.share, number),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """How gates end; arrays over gates, and over cases in the last axis."""

    verdicts: np.ndarray  # Of each gate: ``UNDECIDED``, ``PASSED`` or ``REGRESSED``.
    ends: np.ndarray  # Repetitions after which it ended, or of its last look.
    of_cases: dict[Kind, np.ndarray]  # By kind, the verdict of each case.
    # By kind, at which look; 0 where it is undecided.
    decided_at: dict[Kind, np.ndarray]


def outcomes(logs: Mapping[Kind, np.ndarray], design: Design) -> Outcomes:
    """Lets gates look at their repetitions until they end.

    ``logs`` are the log slowdowns of each kind, over gates, repetitions and cases; NaN
    is a repetition that one side does not have. The first kind also shows which single
    processes are slow.
    """
    first = next(iter(logs.values()))
    num_gates, _, num_cases = first.shape
    verdicts = np.full(num_gates, UNDECIDED)
    ends = np.full(num_gates, design.looks[-1])
    of_cases = {kind: np.full((num_gates, num_cases), UNDECIDED) for kind in logs}
    decided_at = {kind: np.zeros((num_gates, num_cases), dtype=int) for kind in logs}
    for number in design.looks:
        is_open = verdicts == UNDECIDED
        slower = singles(first, design, number=number).holds
        passed = np.ones(num_gates, dtype=bool)
        for kind, values in logs.items():
            now = look(values, kind, design, number=number).verdicts
            is_new = is_open[:, None] & (of_cases[kind] == UNDECIDED)
            of_cases[kind] = np.where(is_new, now, of_cases[kind])
            decided_at[kind][is_new & (now != UNDECIDED)] = number
            slower = slower | (of_cases[kind] == REGRESSED).any(axis=-1)
            if kind.margins is not None:
                passed &= np.isin(of_cases[kind], (PASSED, IMPROVED)).all(axis=-1)
        for verdict, holds in ((REGRESSED, slower), (PASSED, passed)):
            is_now = is_open & holds & (verdicts == UNDECIDED)
            verdicts[is_now], ends[is_now] = verdict, number
    return Outcomes(
        verdicts=verdicts, ends=ends, of_cases=of_cases, decided_at=decided_at
    )


# Hypotheses are about ``delta``, the slowdown that matters, and not about zero, so
# noise makes a gate inconclusive, and never makes it pass. The one-sided tests at
# ``alpha`` are read off one interval of confidence 1 - 2 ``alpha`` (Schuirmann 1987): a
# slowdown that is certainly there and smaller than ``delta`` passes, one that may be as
# large is a regression.
DEFAULT_DELTA = 0.05
DEFAULT_ALPHA = 0.05
FEWEST_REPETITIONS = 2
OF_TWO_STUDIES = (
    "Welch's t over the runs of two studies, which were not measured in the same rounds"
)


class Verdict(str, enum.Enum):  # Python 3.10 has no StrEnum
    """What a gate says."""

    PASS = "pass"  # noqa: S105  # a verdict, no password
    IMPROVE = "improve"
    REGRESS = "regress"
    INCONCLUSIVE = "inconclusive"

    @property
    def is_pass(self) -> bool:
        """Whether the change may be merged: an improvement is a kind of pass."""
        return self in {Verdict.PASS, Verdict.IMPROVE}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A verdict, and what it was derived from."""

    verdict: Verdict  # What the rule says.
    # Ratio, above 1 where the change is slower; confidence is 1 - 2 ``alpha``.
    slowdown: Estimate
    delta: float  # The slowdown that matters, as a ratio: 0.05 is 5 %.
    alpha: float  # The probability that a slowdown of exactly ``delta`` passes.


def check_delta(delta: float) -> None:
    """Raises ResultsError unless ``delta`` is a ratio that can be judged."""
    if not 0 < delta <= 1:
        raise errors.ResultsError(
            f"delta is {delta!r}, must be more than 0 and at most 1: the slowdown that "
            "matters, such as 0.05 for 5 %"
        )


def check_alpha(alpha: float) -> None:
    """Raises ResultsError unless ``alpha`` is the level of a one-sided test."""
    if not 0 < alpha < 0.5:  # noqa: PLR2004  # an interval of confidence 0 or less
        raise errors.ResultsError(
            f"alpha is {alpha!r}, must be more than 0 and less than 0.5: the accepted "
            "probability of passing a slowdown of delta, such as 0.05"
        )


def verdict_of(low: float, high: float, *, margin: float) -> Verdict:
    """Returns the verdict on an interval of a loss, such as the log slowdown.

    ``margin`` is the loss that matters. What is certainly there, and may be as large,
    is a regression; an interval around 0 that holds the margin is inconclusive.
    """
    if high < 0:
        return Verdict.IMPROVE
    if high < margin:
        return Verdict.PASS
    return Verdict.REGRESS if low > 0 else Verdict.INCONCLUSIVE


def judge_mean(mean: Mean, *, delta: float, alpha: float) -> Judgement:
    """Judges a mean log slowdown of a change and a baseline from different rounds.

    ``delta`` is the slowdown that matters, as a ratio, and ``alpha`` the probability
    that it passes. Raises ResultsError for one run, and for values out of range.
    """
    check_delta(delta)
    check_alpha(alpha)
    estimate = mean.estimate(OF_TWO_STUDIES, confidence=1 - 2 * alpha)
    if estimate.low is None or estimate.high is None:
        raise errors.ResultsError(
            f"there is {mean.n} run, a verdict needs {FEWEST_REPETITIONS} or "
            "more of each side: one says nothing about the spread between processes; "
            "measure longer"
        )
    return Judgement(
        verdict=verdict_of(estimate.low, estimate.high, margin=math.log1p(delta)),
        slowdown=estimates.from_logs(estimate),
        delta=delta,
        alpha=alpha,
    )


# What a gate can find: shares of simulated gates that follow the rule itself, always
# with the same draws. The log slowdown of a repetition is normal with one standard
# deviation, and the change is in one of the cases. Sustained stretches are left out.
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


def planned_design(
    *,
    delta: float,
    alpha: float,
    num_repetitions: int | None = None,
    most: int | None = None,
) -> Design:
    """Returns the rule of a gate: with one look after ``num_repetitions``, or several.

    ``most`` is how many repetitions there is time for. ``delta`` and ``alpha`` are as
    in ``judge_mean``. Raises ResultsError for values out of range.
    """
    check_delta(delta)
    check_alpha(alpha)
    planned = planned_looks(alpha) if num_repetitions is None else ()
    last = planned[-1] if num_repetitions is None else num_repetitions
    number = last if most is None else min(most, last)
    if number < FEWEST_REPETITIONS:
        raise errors.ResultsError(
            f"num_repetitions is {number}, must be"
            f" {FEWEST_REPETITIONS} or more: one says nothing about"
            " the spread between processes"
        )
    looks = looks_until(number, planned)
    return Design(looks=looks, most=last, delta=delta, alpha=alpha)


@functools.lru_cache(maxsize=4)
def _draws(num_repetitions: int, num_cases: int) -> np.ndarray:
    generator = np.random.default_rng([_SEED, num_cases])
    return generator.standard_normal((NUM_GATES, num_repetitions, num_cases))


def operating_points(
    spread: float, effects: Sequence[float], rule: Design, *, num_cases: int = 1
) -> tuple[OperatingPoint, ...]:
    """Returns how 2,000 simulated gates end, for each true slowdown of one case.

    ``spread`` is the standard deviation of the log ratio over repetitions, and an
    effect a ratio: 0.05 is 5 % slower. Raises ResultsError for a spread that is not
    positive and finite.
    """
    _check_spread(spread)
    points = []
    for effect in effects:
        logs = spread * _draws(rule.looks[-1], num_cases)
        logs[..., -1] += math.log1p(effect)
        outcome = outcomes({BLOCKS: logs}, rule)
        passes, regresses = (
            float((outcome.verdicts == verdict).mean())
            for verdict in (PASSED, REGRESSED)
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
    delta: float = DEFAULT_DELTA,
    alpha: float = DEFAULT_ALPHA,
) -> tuple[Need, ...]:
    """Returns how many repetitions give each true effect its correct verdict.

    A gate with one look does so in nine of ten cases. Arguments are as in
    ``operating_points`` and ``planned_design``.
    """
    needs = []
    for effect in effects:
        is_slower = effect >= delta

        def is_enough(
            number: float, effect: float = effect, *, is_slower: bool = is_slower
        ) -> bool:
            rule = planned_design(delta=delta, alpha=alpha, num_repetitions=int(number))
            (point,) = operating_points(spread, [effect], rule, num_cases=num_cases)
            return (point.regresses if is_slower else point.passes) >= DEFAULT_POWER

        fewest = FEWEST_REPETITIONS
        least = _least(is_enough, fewest - 1, fewest, MOST_REPETITIONS, step=1)
        number = None if least is None else int(least)
        minutes = None if least is None else least * minutes_per_repetition
        verdict = Verdict.REGRESS if is_slower else Verdict.PASS
        needs.append(Need(effect, verdict, number, minutes))
    return tuple(needs)


def smallest_effect_found(
    spread: float, rule: Design, *, num_cases: int = 1
) -> float | None:
    """Returns the smallest slowdown of one case that nine of ten gates find.

    None where no slowdown is. Arguments are as in ``operating_points``.
    """

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
    """Returns the half width, as a logarithm, that half of all 95 % intervals reach.

    ``spread`` is as in ``operating_points``.
    """
    from scipy import special

    _check_spread(spread)
    degrees = num_repetitions - 1
    relative = math.sqrt(float(special.chdtri(degrees, 0.5)) / degrees)
    quantile = estimates.student_quantile(degrees)
    return quantile * spread * relative / math.sqrt(num_repetitions)
