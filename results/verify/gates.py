"""The verdict of a gate a second time: from raw turns, with other arithmetic.

``results/statistics`` judges arrays of gates, with levels by quadrature. Here one gate
is judged in plain numbers, with levels from a grid and Brent's method, and quantiles of
``scipy.stats``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LOWEST = -8.5
_NUM_POINTS = 801
OF_PASSING = 0.5
STANDS_OUT = 4.0
SEEN_IN = 0.8  # of generations: what slows the others must be seen
MOST_ASSUMED, MOST_SEEN = 0.5, 0.95
# Share of alpha for a false regression, and the margin in units of delta.
KINDS: Mapping[str, tuple[float, float | None]] = {
    "turns": (0.6, 1.0),
    "sustained mean": (0.1, 3.0),
    "sustained 99th percentile": (0.05, None),
}
SINGLES = 0.15

Logs = dict[str, list[list[float | None]]]
"""By kind: of each case, the log slowdown of each generation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdicts:
    """What a gate says."""

    whole: str  # Of the gate: pass, regress or inconclusive.
    after: int  # Generations at which it was decided, or looked last.
    # Of the turns of each case, with value, low and high as ratios.
    cases: tuple[tuple[str, float, float, float], ...]


def log_slowdowns(
    pairs: Sequence[tuple[Mapping[Any, Any], Mapping[Any, Any]]],
) -> Logs:
    """Returns log slowdowns from raw results of both sides, by repetition."""
    keys = sorted({key for pair in pairs for side in pair for key in side})
    of: dict[str, Callable[[Any, Any], float | None]] = {
        "turns": _of_turns,
        "sustained mean": lambda a, b: _of_stretches(a, b, statistics.fmean),
        "sustained 99th percentile": lambda a, b: _of_stretches(a, b, _percentile),
    }
    found = {
        kind: [
            [
                how(here[key], there[key]) if key in here and key in there else None
                for key in keys
            ]
            for here, there in pairs
        ]
        for kind, how in of.items()
    }
    return {
        kind: logs
        for kind, logs in found.items()
        if kind == "turns" or any(value is not None for of in logs for value in of)
    }


def of_ranks(
    pairs: Sequence[tuple[Mapping[Any, Any], Mapping[Any, Any]]],
    field: str,
    of: Callable[[list[float]], float],
) -> Logs:
    """Returns log slowdowns of a cost that each process has once."""
    keys = sorted({key for pair in pairs for side in pair for key in side})
    found: list[list[float | None]] = []
    for pair in pairs:
        found.append([])
        for key in keys:
            both = [of([r[field] for r in s[key]["ranks"]]) for s in pair if key in s]
            known = len(both) == len(pair) and min(both) > 0
            found[-1].append(math.log(both[0] / both[1]) if known else None)
    return {"turns": found}


def of_efficiency(logs: Logs, sizes: Sequence[tuple[str, int, set[str]]]) -> Logs:
    """Returns what each case loses beyond its baseline, of those that have one."""
    pairs = []
    for own, (backend, number, modes) in enumerate(sizes):
        fewer = [
            (other[1], at)
            for at, other in enumerate(sizes)
            if other[0] == backend and other[1] < number and other[2] & modes
        ]
        if fewer:
            pairs.append((own, min(fewer)[1]))
    return {
        kind: [
            [
                None if a is None or b is None else a - b
                for a, b in zip(cases[own], cases[base], strict=True)
            ]
            for own, base in pairs
        ]
        for kind, cases in logs.items()
        if kind != "sustained 99th percentile"
    }


def _of_turns(here: Mapping[str, Any], there: Mapping[str, Any]) -> float | None:
    def seconds(result: Mapping[str, Any]) -> dict[int, float]:
        return {
            turn["round_index"]: (turn["end_ns"] - turn["start_ns"]) / turn["num_steps"]
            for turn in result["turns"]
            if not turn["is_void"] and not turn["is_sustained"]
        }

    ours, theirs = seconds(here), seconds(there)
    logs = [math.log(ours[key] / theirs[key]) for key in ours if key in theirs]
    return statistics.fmean(logs) if logs else None


def _stretches(result: Mapping[str, Any]) -> dict[int, list[float]]:
    of_ranks = [rank["step_time_sec"] for rank in result["ranks"]]
    steps = [max(of) for of in zip(*of_ranks, strict=True)]
    found: dict[int, list[float]] = {}
    for turn in result["turns"]:
        own, steps = steps[: turn["num_steps"]], steps[turn["num_steps"] :]
        if turn["is_sustained"] and not turn["is_void"]:
            found[turn["round_index"]] = own
    return found


def _of_stretches(
    here: Mapping[str, Any],
    there: Mapping[str, Any],
    how: Callable[[list[float]], float],
) -> float | None:
    ours, theirs = _stretches(here), _stretches(there)
    rounds = [key for key in ours if key in theirs]
    if not rounds:
        return None
    both = (
        how(list(itertools.chain.from_iterable(side[key] for key in rounds)))
        for side in (ours, theirs)
    )
    return math.log(next(both) / next(both))


def _percentile(steps: list[float]) -> float:
    """The 99th, between the two nearest steps in proportion."""
    ordered = sorted(steps)
    place = 0.99 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@functools.lru_cache(maxsize=256)
def levels(looks: tuple[int, ...], most: int, alpha: float) -> list[float]:
    """Returns the one-sided level of each look: alpha is spent as t to the 1.5."""
    import numpy as np
    from scipy import integrate, optimize, special

    found: list[float] = []
    points, density = np.zeros(1), None
    before = spent = 0.0
    for look in looks:
        now = look / most
        step = math.sqrt(now - before)
        until = alpha * now * math.sqrt(now)

        def crossing(bound: float) -> float:
            tail = special.ndtr((points - bound) / step)  # noqa: B023  # at once
            if density is None:  # noqa: B023
                return float(tail[0])
            return float(integrate.simpson(density * tail, x=points))  # noqa: B023

        top = -LOWEST * math.sqrt(now)
        wanted = until - spent
        bound = optimize.brentq(
            lambda b: crossing(b) - wanted,  # noqa: B023
            -top,
            top,
            xtol=1e-14,
        )
        found.append(float(special.ndtr(-bound / math.sqrt(now))))
        new = np.linspace(-top, bound, _NUM_POINTS)
        apart = (new[:, None] - points[None, :]) / step
        kernel = np.exp(-apart * apart / 2) / (step * math.sqrt(2 * math.pi))
        density = (
            kernel[:, 0]
            if density is None
            else integrate.simpson(kernel * density[None, :], x=points, axis=1)
        )
        points, before, spent = new, now, until
    return found


def judge(
    logs: Logs, *, planned: Sequence[int], delta: float, alpha: float
) -> Verdicts:
    """Returns what a gate with these log slowdowns says."""
    number = len(logs["turns"][0])
    looks = [*(look for look in planned if look < number), number]
    most = max([number, *planned])
    of_looks = {
        share: dict(zip(looks, levels(tuple(looks), most, share * alpha), strict=True))
        for share in _shares(logs)
    }
    fewest = 1 + next(n for n in itertools.count(1) if SEEN_IN**n <= alpha)
    passing = dict.fromkeys(looks, OF_PASSING * alpha)
    late = tuple(look for look in looks if look >= fewest)
    if late:
        passing |= zip(late, levels(late, most, OF_PASSING * alpha), strict=True)
    decided: dict[tuple[str, int], tuple[str, tuple[float, float, float]]] = {}
    shown: dict[tuple[str, int], tuple[float, float, float]] = {}
    for look in looks:
        for kind, cases in logs.items():
            now = _at(kind, cases, look, of_looks, (passing[look], fewest), delta)
            for index, (verdict, interval) in enumerate(now):
                shown[kind, index] = interval
                if verdict != "inconclusive":
                    decided.setdefault((kind, index), (verdict, interval))
        whole = _whole(logs, decided)
        if _has_slow_processes(logs["turns"], look, of_looks[SINGLES][look], delta):
            whole = "regress"
        if whole != "inconclusive" or look == looks[-1]:
            break
    cases_found = []
    for index in range(len(logs["turns"])):
        verdict, interval = decided.get(
            ("turns", index), ("inconclusive", shown["turns", index])
        )
        value, low, high = map(math.exp, interval)
        cases_found.append((verdict, value, low, high))
    return Verdicts(whole=whole, after=look, cases=tuple(cases_found))


def _shares(logs: Logs) -> set[float]:
    found = {SINGLES}
    for kind, cases in logs.items():
        found |= {KINDS[kind][0] / (len(cases) - rank) for rank in range(len(cases))}
    return found


def _whole(logs: Logs, decided: Mapping[tuple[str, int], tuple[str, Any]]) -> str:
    verdicts = {key: verdict for key, (verdict, _) in decided.items()}
    if "regress" in verdicts.values():
        return "regress"
    wanted = [
        (kind, index)
        for kind, cases in logs.items()
        if KINDS[kind][1] is not None
        for index in range(len(cases))
    ]
    return "pass" if all(key in verdicts for key in wanted) else "inconclusive"


def _at(
    kind: str,
    cases: Sequence[Sequence[float | None]],
    look: int,
    of_looks: Mapping[float, Mapping[int, float]],
    passing: tuple[float, int],
    delta: float,
) -> list[tuple[str, tuple[float, float, float]]]:
    """Returns the verdict and interval of each case at a look."""
    from scipy import stats

    share, margins = KINDS[kind]
    known = [[v for v in case[:look] if v is not None] for case in cases]
    means = [statistics.fmean(of) if of else 0.0 for of in known]
    away = [
        [0.0 if v is None else v - mean for v in case[:look]]
        for case, mean in zip(cases, means, strict=True)
    ]
    wider = _widening(away)
    degrees = [max(len(of), 2) - 1 for of in known]
    errors = [
        wider * math.sqrt(math.fsum(v * v for v in of) / d / (d + 1))
        for of, d in zip(away, degrees, strict=True)
    ]
    p_values = [
        float(stats.t.sf(mean / max(error, 2.2250738585072014e-308), d))
        for mean, error, d in zip(means, errors, degrees, strict=True)
    ]
    slower: set[int] = set()
    for rank, index in enumerate(sorted(range(len(cases)), key=p_values.__getitem__)):
        if p_values[index] > of_looks[share / (len(cases) - rank)][look]:
            break
        slower.add(index)
    found = []
    for index, (mean, error) in enumerate(zip(means, errors, strict=True)):
        number = len(known[index])
        if number < 2:  # noqa: PLR2004 - a spread needs two
            found.append(("inconclusive", (mean, math.nan, math.nan)))
            continue
        strict = stats.t.isf(of_looks[share / len(cases)][look], degrees[index]) * error
        high = mean + stats.t.isf(passing[0], degrees[index]) * error
        verdict = "inconclusive"
        is_seen = number >= passing[1] and margins is not None
        if is_seen and margins and high < math.log1p(margins * delta):
            verdict = "improve" if mean + strict < 0 else "pass"
        elif index in slower and mean > 0 and number > 2:  # noqa: PLR2004
            verdict = "regress"
        found.append((verdict, (mean, mean - strict, float(high))))
    return found


def _widening(cases: Sequence[Sequence[float]]) -> float:
    """Returns what generations that depend on each other make of the intervals."""
    number, num_cases = len(cases[0]), len(cases)
    total = math.fsum(v * v for of in cases for v in of) or 1.0
    lagged = math.fsum(a * b for of in cases for a, b in itertools.pairwise(of))
    found = lagged / total
    found += (1 + 4 * found) / number
    shared = math.fsum(math.fsum(of) ** 2 for of in zip(*cases, strict=True))
    shared /= num_cases * total
    told = shared**2 + (1 - shared) ** 2 / max(num_cases - 1, 1)
    bound = found + 1.28 * math.sqrt(told / number)
    r = max(0.0, min(bound, MOST_ASSUMED), min(found, MOST_SEEN))
    # The variance of the mean of all pairs, over that of independent ones.
    pairs = itertools.product(range(number), repeat=2)
    variance = math.fsum(r ** abs(a - b) for a, b in pairs) / number
    measured = 1 - (variance - 1) / max(number - 1, 1)
    return math.sqrt(variance / max(measured, 0.05))


def _has_slow_processes(
    cases: Sequence[Sequence[float | None]], look: int, level: float, delta: float
) -> bool:
    from scipy import stats

    known = [[v for v in case[:look] if v is not None] for case in cases]
    around = [statistics.median(of) if of else 0.0 for of in known]
    values = list(itertools.chain.from_iterable(known))
    if not values:
        return False
    residuals = [abs(v - a) for of, a in zip(known, around, strict=True) for v in of]
    usual = 1.4826 * statistics.median(residuals)
    limit = max(STANDS_OUT * usual, math.log1p(delta))
    votes = [
        sum((v > limit) - (v < -limit) for v in of if v is not None)
        for of in zip(*(case[:look] for case in cases), strict=True)
    ]
    slower = sum(vote > 0 for vote in votes)
    both = slower + sum(vote < 0 for vote in votes)
    return slower > 0 and float(stats.binom.sf(slower - 1, both, 0.5)) <= level
