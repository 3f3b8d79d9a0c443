"""Figures of a study, computed a second time, from raw trials and by another path.

For ``verify``. ``results/figures/scaling.py`` and its modules compute the same figures
from the records; nothing of theirs is used here. Quantiles and standard errors are
those of ``scipy.stats``.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIDENCE = 0.95
_NUM_DRAWS = 200_000
_SEED = 4
_WIDENING = 1.1
_MOST_VOID = 0.3

Rates = dict[int, float]
"""Examples per second by round; round 0 alone for a contiguous window."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure and its interval."""

    value: float  # The centre.
    low: float | None  # Lower end of the interval, None without one.
    high: float | None  # Upper end.
    n: int  # Repetitions, or generations.
    # Whether the interval is from random numbers, so that two computations of it differ
    # a little.
    is_drawn: bool = False
    # What load below the limit slowed the first and the second case by, of a ratio on a
    # busy machine: factors of the upper end and, inverted, of the lower.
    load_left: tuple[float, float] = (1.0, 1.0)

    def scaled(self, factor: float) -> Figure:
        """Returns the figure times a constant."""
        return dataclasses.replace(
            self,
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )

    def widened(self) -> Figure:
        """Returns the figure of a study that stopped on the width of its interval."""
        if self.low is None or self.high is None:
            return self
        return dataclasses.replace(
            self,
            low=self.value * (self.low / self.value) ** _WIDENING,
            high=self.value * (self.high / self.value) ** _WIDENING,
        )


def rates(result: Mapping[str, Any]) -> Rates:
    """Returns the examples per second of a raw trial's valid turns, or its window."""
    batch = result["global_batch_size"]
    if not result["turns"]:
        num_examples = batch * result["num_measured_steps"]
        return {0: num_examples / result["window_sec"]}
    return {
        turn["round_index"]: (
            batch * turn["num_steps"] * 1e9 / (turn["end_ns"] - turn["start_ns"])
        )
        for turn in result["turns"]
        if not turn["is_void"] and not turn["is_sustained"]
    }


def rates_beside_load(result: Mapping[str, Any]) -> Rates:
    """Returns the examples per second of each round's least disturbed turn."""
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    for turn in result["turns"]:
        if not (turn["num_retraces"] or turn["is_sustained"]):
            rounds.setdefault(turn["round_index"], []).append(turn)
    chosen = [
        min(of, key=lambda t: (t["is_void"], _others(t))) for of in rounds.values()
    ]
    undisturbed = [{**turn, "is_void": False} for turn in chosen]
    return rates({**result, "turns": undisturbed}) if chosen else {}


def _others(turn: Mapping[str, Any]) -> float:
    return sum(
        turn.get(f"{kind}_cpu_fraction") or 0.0 for kind in ("foreign", "stolen")
    )


def load_left(
    first: Mapping[Any, Mapping[str, Any]], second: Mapping[Any, Mapping[str, Any]]
) -> tuple[float, float]:
    """Returns what load that does not count slowed two cases by, at most.

    One where at most 30 % of their turns are void. Turns have their ``num_cores``.
    """
    sides = [
        {
            key: [turn for turn in of["turns"] if not turn["is_sustained"]]
            for key, of in side.items()
        }
        for side in (first, second)
    ]
    turns = [turn for side in sides for of in side.values() for turn in of]
    if sum(turn["is_void"] for turn in turns) <= _MOST_VOID * len(turns):
        return 1.0, 1.0
    valid = [
        {
            (key, turn["round_index"]): min(_others(turn) * turn["num_cores"], 0.5)
            for key, of in side.items()
            for turn in of
            if not turn["is_void"]
        }
        for side in sides
    ]
    both = valid[0].keys() & valid[1].keys()
    found = []
    for side in valid:
        means = [
            statistics.fmean(
                math.log(1 - side[pair]) for pair in both if pair[0] == key
            )
            for key in {key for key, _ in both}
        ]
        found.append(math.exp(-statistics.fmean(means)))
    return found[0], found[1]


def flop_utilisation(result: Mapping[str, Any], of_turns: Rates) -> float:
    """Returns the floating-point rate of a trial over its peak; 0 if one is unknown."""
    peaks = [rank["peak_flops_per_sec"] or 0 for rank in result["ranks"]]
    if 0 in peaks or not result["flops_per_example"]:
        return 0.0
    mean_rate = math.exp(statistics.fmean(map(math.log, of_turns.values())))
    return float(mean_rate * result["flops_per_example"] / sum(peaks))


def of_values(values: Sequence[float]) -> Figure:
    """Returns the geometric mean over repetitions, with Student's interval."""
    return over_repetitions([math.log(value) for value in values])


def over_repetitions(logs: Sequence[float]) -> Figure:
    """Returns exp(mean) with Student's interval over ``logs``."""
    from scipy import stats

    centre = statistics.fmean(logs)
    if len(logs) == 1:
        return _figure(centre, None, 1)
    error = float(stats.sem(logs))
    half = float(stats.t.isf((1 - CONFIDENCE) / 2, len(logs) - 1)) * error
    return _figure(centre, half, len(logs))


def throughput(of_trials: Sequence[Rates], *, is_relay: bool) -> Figure:
    """Returns the throughput of a case from its trials."""
    logs = [[math.log(rate) for rate in of.values()] for of in of_trials]
    return _of_generations(logs) if is_relay else _of_windows(logs)


def ratio(
    first: Mapping[Any, Rates], second: Mapping[Any, Rates], *, is_relay: bool
) -> Figure | None:
    """Returns the ratio of two cases, by repetition; None where none has both.

    Repetitions that both have are compared in pairs. In a relay the rounds are; without
    one, cases with different repetitions are compared as two groups.
    """
    shared = [key for key in first if key in second]
    if is_relay:
        logs = [
            [
                math.log(first[key][index] / second[key][index])
                for index in sorted(first[key].keys() & second[key].keys())
            ]
            for key in shared
        ]
        logs = [of for of in logs if of]
        return _of_generations(logs) if logs else None
    if not first or not second:
        return None
    if first.keys() != second.keys():
        return _two_groups(
            [math.log(of[0]) for of in first.values()],
            [math.log(of[0]) for of in second.values()],
        )
    return over_repetitions(
        [math.log(first[key][0] / second[key][0]) for key in shared]
    )


def _of_windows(logs: Sequence[Sequence[float]]) -> Figure:
    return over_repetitions([log for (log,) in logs])


def _of_generations(logs: Sequence[Sequence[float]]) -> Figure:
    """Returns a figure over generations; of one alone, from batches of its rounds."""
    if len(logs) > 1:
        return _at_least_of_rounds(logs)
    (rounds,) = logs
    number = min(max(math.isqrt(len(rounds)), 10), 30, len(rounds) // 2)
    centre = statistics.fmean(rounds)
    if number < 2:  # noqa: PLR2004 - an interval needs two
        return _figure(centre, None, 1)
    length, longer = divmod(len(rounds), number)
    means, start = [], 0
    for index in range(number):
        end = start + length + (index < longer)
        means.append(statistics.fmean(rounds[start:end]))
        start = end
    around = over_repetitions(means)
    assert around.high is not None
    return _figure(centre, math.log(around.high) - statistics.fmean(means), 1)


def _at_least_of_rounds(logs: Sequence[Sequence[float]]) -> Figure:
    """Returns Student's interval over means, or that of rounds if it is wider.

    The second takes the variance within generations as the only one.
    """
    from scipy import stats

    found = over_repetitions([statistics.fmean(of) for of in logs])
    degrees = sum(map(len, logs)) - len(logs)
    if not degrees:
        return found
    assert found.high is not None
    within = sum(statistics.pvariance(of) * len(of) for of in logs) / degrees
    error = math.sqrt(within * sum(1 / len(of) for of in logs)) / len(logs)
    half = float(stats.t.isf((1 - CONFIDENCE) / 2, degrees)) * error
    centre = math.log(found.value)
    return _figure(centre, max(half, math.log(found.high) - centre), len(logs))


def _two_groups(first: Sequence[float], second: Sequence[float]) -> Figure:
    """Returns the ratio of unpaired groups, by a parametric studentized bootstrap."""
    import numpy as np

    centre = statistics.fmean(first) - statistics.fmean(second)
    n = min(len(first), len(second))
    if n == 1:
        return _figure(centre, None, 1)
    generator = np.random.default_rng(_SEED)
    drawn = stated = np.zeros(_NUM_DRAWS)
    total = 0.0
    for group in (first, second):
        variance = statistics.variance(group) / len(group)
        degrees = len(group) - 1
        drawn = drawn + generator.normal(0.0, math.sqrt(variance), _NUM_DRAWS)
        stated = stated + (
            variance * generator.chisquare(degrees, _NUM_DRAWS) / degrees
        )
        total += variance
    if not total:
        return _figure(centre, 0.0, n)
    quantile = float(np.quantile(np.abs(drawn) / np.sqrt(stated), CONFIDENCE))
    return dataclasses.replace(
        _figure(centre, quantile * math.sqrt(total), n), is_drawn=True
    )


def _figure(centre: float, half: float | None, n: int) -> Figure:
    return Figure(
        value=math.exp(centre),
        low=None if half is None else math.exp(centre - half),
        high=None if half is None else math.exp(centre + half),
        n=n,
    )
