"""The rule of a gate that looks several times, for all of its cases at once.

After some generations the gate looks: it ends where the answer is clear and goes on
where it is not. Of each case and kind of measurement the log slowdown of a generation
is one number, positive where the change is slower. At a look it has the interval

    [m - t(r) s / sqrt(n), m + t(p) s / sqrt(n)]

with the moderated deviation s (``moderated.py``); of turns, generations in which all
cases were disturbed count less (``generation_weights.py``). The levels r and p are what
the spending function leaves for this look (``spending.py``): p spends ``alpha`` on
passing a slowdown of exactly the margin, r spends the kind's share of ``alpha`` on
calling equal programs slower. r is divided by the number of cases; once a case is
slower, the others are tested as one fewer (Holm, Scandinavian Journal of Statistics 6,
1979).

A case passes where the upper end is below the margin, and has then passed: later looks
do not change it. It regresses where the lower end is above 0 and it did not pass. The
gate ends with the first regression, or when all have passed.

Whether single processes are slow, no mean shows before it is too late: a process in
five that takes 50 % longer is a mean of 8 % with a spread of 16 %. Were the programs
equal, a generation that stands out would stand out to either side with probability 1/2
whatever the noise, so those that do are judged by a sign test.

Record 0062 has the schedules and rules that this one was chosen from, with figures.

All functions work on arrays whose last axes are generations and cases, so that
``make statistics`` simulates the rule itself.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results.statistics import generation_weights, moderated, spending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.statistics.spending import Spending

LOOKS = (3, 4, 5, 6, 7, 8, 10, 12)
"""Generations after which a gate looks; with fewer looks it takes more of them."""
OF_PASSING = 0.8
"""Share of ``alpha`` that the levels of passing spend. By simulation: the t tests of
several looks, with spreads that are borrowed, err a fifth more often than their levels
say (``make statistics``)."""
STANDS_OUT = 4.0
"""Robust standard deviations from 0, and at least the margin."""

UNDECIDED, PASSED, REGRESSED, IMPROVED = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of measurement of every case.

    Attributes:
      name: What is compared.
      share: Of ``alpha``: the probability that equal programs regress by it.
      margins: The slowdown that matters in units of ``delta``; None where it cannot
        pass, and only regresses.
    """

    name: str
    share: float
    margins: float | None


TURNS = Kind(name="turns", share=0.7, margins=1.0)
SUSTAINED = Kind(name="sustained mean", share=0.1, margins=3.0)
TAIL = Kind(name="sustained 99th percentile", share=0.05, margins=None)
SINGLE = Kind(name="single processes", share=0.15, margins=None)
PROCESSES = Kind(name="processes", share=0.85, margins=1.0)
"""One number per process, where there are no turns."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """When a gate looks, and how strictly; decided before it measures.

    Attributes:
      looks: After how many generations: all looks so far and to come.
      most: Generations after which all error is spent.
      delta: The slowdown that matters, as a ratio.
      alpha: The accepted probability of passing it, and of a false regression.
      spend: The spending function.
    """

    looks: tuple[int, ...] = LOOKS
    most: int = LOOKS[-1]
    delta: float
    alpha: float
    spend: Spending = spending.kim_demets

    def level(self, share: float, number: int) -> float:
        """Returns the one-sided level of a share of ``alpha`` at one look."""
        levels = spending.nominal_levels(
            self.looks, self.most, share * self.alpha, self.spend
        )
        return levels[self.looks.index(number)]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one kind of measurement says at one look; arrays over gates and cases.

    Attributes:
      mean: Mean log slowdown.
      low: Lower end of its interval; not a number below two generations.
      high: Upper end.
      verdicts: ``UNDECIDED``, ``PASSED``, ``REGRESSED`` or ``IMPROVED``.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    verdicts: np.ndarray


def margin_of(kind: Kind, delta: float) -> float:
    """Returns the log slowdown that matters; of none, where a kind cannot pass."""
    return -math.inf if kind.margins is None else math.log1p(kind.margins * delta)


def look(logs: np.ndarray, kind: Kind, design: Design, *, number: int) -> Look:
    """Judges one kind of measurement at one look.

    Args:
      logs: Log slowdowns; not a number where a generation has none.
      kind: What they are.
      design: When the gate looks, and how strictly.
      number: Generations so far, one of ``design.looks``.
    """
    from scipy import special

    values = logs[..., :number, :]
    known = ~np.isnan(values)
    is_known = known.sum(axis=-2) >= 2  # noqa: PLR2004 - a spread needs two
    weights = known * (generation_weights.weights(values) if kind is TURNS else 1.0)
    tiny = np.finfo(np.float64).tiny
    total = np.maximum(weights.sum(axis=-2), tiny)
    # Of unequal weights, the number of equal ones that tell as much.
    counts = np.maximum(total**2 / np.maximum((weights**2).sum(axis=-2), tiny), 2.0)
    mean = np.nansum(weights * values, axis=-2) / total
    squares = np.nansum(weights * (values - mean[..., None, :]) ** 2, axis=-2)
    squares = squares / total * counts / (counts - 1)
    variance, degrees = squares, counts - 1
    if is_known.all():  # a case that was not measured lends nothing
        variance, degrees = moderated.moderated(squares, degrees)
    error = np.sqrt(variance / counts)

    def quantile(share: float) -> np.ndarray:
        level = design.level(share, number)
        found: np.ndarray = special.stdtrit(degrees, 1 - level)
        return found

    num_cases = values.shape[-1]
    strict = quantile(kind.share / num_cases)
    low, high = mean - strict * error, mean + quantile(OF_PASSING) * error
    verdicts = np.full(mean.shape, UNDECIDED)
    passed = high < margin_of(kind, design.delta)
    steps = [
        design.level(kind.share / (num_cases - index), number)
        for index in range(num_cases)
    ]
    verdicts[_holm(mean, error, degrees, steps) & (mean > 0)] = REGRESSED
    verdicts[passed] = PASSED
    verdicts[passed & (mean + strict * error < 0)] = IMPROVED
    verdicts[~is_known] = UNDECIDED
    return Look(
        mean=mean,
        low=np.where(is_known, low, np.nan),
        high=np.where(is_known, high, np.nan),
        verdicts=verdicts,
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
    found = np.zeros_like(holds)
    np.put_along_axis(found, order, holds, axis=-1)
    return found


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns the median of what is a number, 0 where nothing is; keeps the axis."""
    if not np.isnan(values).any():
        found: np.ndarray = np.median(values, axis=axis, keepdims=True)
        return found
    is_known = ~np.isnan(values).all(axis=axis, keepdims=True)
    return np.nanmedian(np.where(is_known, values, 0.0), axis=axis, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Singles:
    """Generations of cases that stand out from the others; arrays over gates.

    Attributes:
      threshold: Log ratio from which a generation stands out.
      num_slower: Of the change.
      num_faster: Of the change, which is of the baseline.
      p_value: Of so many or more slower ones, were the programs equal.
      holds: Whether the change has slow processes.
    """

    threshold: np.ndarray
    num_slower: np.ndarray
    num_faster: np.ndarray
    p_value: np.ndarray
    holds: np.ndarray


def singles(logs: np.ndarray, design: Design, *, number: int) -> Singles:
    """Judges at one look whether single processes of the change are slow."""
    from scipy import special

    values = logs[..., :number, :]
    flat = values.reshape(*values.shape[:-2], -1)
    residuals = np.abs(values - _median(values, axis=-2)).reshape(flat.shape)
    scale = generation_weights.NORMAL_DEVIATION * np.squeeze(
        _median(residuals, axis=-1), axis=-1
    )
    threshold = np.maximum(STANDS_OUT * scale, math.log1p(design.delta))
    slower = (flat > threshold[..., None]).sum(axis=-1)
    faster = (flat < -threshold[..., None]).sum(axis=-1)
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
    """How gates end; arrays over gates, and over cases in the last axis.

    Attributes:
      verdicts: Of each gate: ``UNDECIDED``, ``PASSED`` or ``REGRESSED``.
      ends: Generations after which it ended, or of its last look.
      of_cases: By kind, the verdict of each case.
      decided_at: By kind, at which look; 0 where it is undecided.
    """

    verdicts: np.ndarray
    ends: np.ndarray
    of_cases: dict[Kind, np.ndarray]
    decided_at: dict[Kind, np.ndarray]


def outcomes(logs: Mapping[Kind, np.ndarray], design: Design) -> Outcomes:
    """Lets gates look at their generations until they end.

    Args:
      logs: Log slowdowns by kind, over gates, generations and cases. Single processes
        are judged by the first.
      design: When they look, and how strictly.
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
