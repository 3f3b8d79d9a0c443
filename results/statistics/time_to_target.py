"""Seconds or examples until training reaches a quality, where some runs never do.

A run that ends before it reaches the target is *censored*: it would have taken longer
than its budget, nobody knows how much. It is never dropped, since that would show only
the runs that went well. The **median** time can be stated nevertheless: the first at
which at least half of the runs have reached it. If fewer than half do within the
budget, it is "longer than the budget".

The interval of the median needs no model of the times: the k-th fastest and k-th
slowest of n runs enclose the median with the probability that at least k and at most
n - k of n fair coins show heads. With fewer than 6 runs no two runs enclose it with
95 %, so the interval extends from the fastest to the slowest, and ``confidence`` states
what that is worth: 0.75 with 3 runs, 0.88 with 4, 0.94 with 5. It is exact for
continuous times, and an end that is censored is open: "longer than the budget".

Times between evaluations are not interpolated: the target counts as reached at the
first evaluation that meets it, so a time is late by up to the distance of evaluations.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

import numpy as np

from results import errors
from results.statistics.estimates import CONFIDENCE, Estimate, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST_RUNS = 3
MOST_MISSED = 0.1
"""Of studies whose cases are equal: those in which one seems never to get there."""

METHOD = "median of censored times, ends by order statistics"
TOO_FEW = f"no interval: fewer than {FEWEST_RUNS} runs say too little about the spread"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """What one run needed, in seconds or examples."""

    # Where the target was reached or, if it was not, where the run ended.
    amount: float
    is_reached: bool  # Whether the target was reached.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TimeToTarget:
    """The median time of several runs."""

    # The median and its interval; what is longer than ``budget`` is infinite.
    median: Estimate
    # Where the first run that did not reach the target ended, or None if all have
    # reached it.
    budget: float | None
    num_reached: int  # Runs that reached the target.


def first_reached(
    curve: Sequence[tuple[float, float]], target: float, *, is_higher_better: bool
) -> Time:
    """Returns when a run first met a target."""
    positions = [position for position, _ in curve]
    if not curve or positions != sorted(positions):
        raise errors.ResultsError(
            f"positions of evaluations are {positions!r}, must be one or more "
            "ascending numbers"
        )
    if math.isnan(target):
        raise errors.ResultsError("target is nan, must be a number")
    for position, value in curve:
        if (value >= target) if is_higher_better else (value <= target):
            return Time(amount=position, is_reached=True)
    return Time(amount=positions[-1], is_reached=False)


def target_of(
    reached: Sequence[float], *, is_higher_better: bool, num_others: int
) -> tuple[float, float]:
    """Returns a quality that runs like these reach as well: one of their worst.

    Of equal runs, half end below the median of the others, and would "never reach it".
    This is the best of the qualities that the median of equal runs misses with a
    probability of at most ``MOST_MISSED``; where none is, the worst of those that did
    not fail, with its probability, which is 0.2 of 3 or 4 runs.
    """
    values = sorted(numbers(reached, "reached"), reverse=not is_higher_better)
    num_failed = sum(map(math.isinf, values))
    if num_failed == len(values):
        raise errors.ResultsError("all runs failed, so there is no target")
    rank = num_failed + 1
    for better in range(rank + 1, len(values) + 1):
        if _missed(len(values), better, num_others) <= MOST_MISSED:
            rank = better
    return float(values[rank - 1]), _missed(len(values), rank, num_others)


def _missed(n: int, rank: int, num_others: int) -> float:
    """Probability that the median of equal runs ends below the rank-th worst of n.

    Any order of both groups is as likely: at least half of the others are worse than
    ``rank`` of the n.
    """
    needed = (num_others + 1) // 2
    orders = sum(
        math.comb(needed - 1 + worse, worse)
        * math.comb(num_others - needed + n - worse, n - worse)
        for worse in range(rank)
    )
    return orders / math.comb(num_others + n, n)


def median(times: Sequence[Time], *, unit: str) -> TimeToTarget:
    """Returns the median time of runs, of which some may be censored."""
    _check(times)
    reached = sorted(time.amount for time in times if time.is_reached)
    ended = [time.amount for time in times if not time.is_reached]
    budget = min(ended) if ended else None
    # Where runs end at different times, what is beyond the first end is not known.
    known = [amount for amount in reached if budget is None or amount <= budget]
    n = len(times)
    ordered = [*known, *[math.inf] * (n - len(known))]
    rank, confidence = _rank(n)
    return TimeToTarget(
        median=Estimate(
            value=statistics.median(ordered),
            low=ordered[rank] if confidence else None,
            high=ordered[n - 1 - rank] if confidence else None,
            n=n,
            unit=unit,
            method=METHOD if confidence else TOO_FEW,
            confidence=confidence,
        ),
        budget=budget,
        num_reached=len(reached),
    )


def _rank(n: int) -> tuple[int, float]:
    """Runs left out at either end of the shortest interval, and its coverage."""
    if n < FEWEST_RUNS:
        return 0, 0.0
    from scipy import special  # a tenth of the import time of scipy.stats

    ranks = np.arange((n + 1) // 2)
    coverage = 1 - 2 * special.bdtr(ranks, n, 0.5)
    enough = np.flatnonzero(coverage >= CONFIDENCE)
    rank = int(enough[-1]) if enough.size else 0
    return rank, float(coverage[rank])


def _check(times: Sequence[Time]) -> None:
    amounts = [time.amount for time in times]
    if not amounts or not all(math.isfinite(a) and a >= 0 for a in amounts):
        raise errors.ResultsError(
            f"times of runs are {amounts!r}, must be one or more finite numbers of at "
            "least 0; a run that did not reach the target has the time at which it "
            "ended"
        )
