"""The headline figures of a study, recomputed from raw trials by other code.

They are throughput, speedup, efficiency, ratios of backends and the A/A control with
their intervals, and the losses of equivalence checks; what was learned is compared as
part of its trial. Of ``results/figures`` only is taken which cases are compared. What
disturbed blocks alone show is no evidence, and left out; an interval that is drawn or
allows for load is only known to be wide enough.
"""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from results.figures import comparisons, relay, scaling
from results.study import matching
from results.study.matching import Outcome
from results.verify.trials import QUALITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry, Key, Study
    from results.study.matching import Match
    from results.verify.check import Check
    from results.verify.trials import Fields, Raws

    Logs = Mapping[Key, Mapping[int, float]]  # By generation and round.

RATIO, CONTROL = "ratios of backends", "A/A control"
LOSSES, VERDICT = "losses of equivalence checks", "verdict"
OF_CASES: Final = ("throughput", "speedup", "efficiency")
KINDS: Final = (*OF_CASES, RATIO, CONTROL, QUALITY, LOSSES, VERDICT)
TOLERANCE: Final = 1e-9
_WIDENING, _MOST_VOID = 1.1, 0.3


class Figure(NamedTuple):
    """A figure and its interval, as logarithms."""

    centre: float
    half: float | None  # Half width of the interval, None without one.
    n: int  # Repetitions, or generations.
    is_least: bool = False  # Whether the interval may be wider.


def compare(study: Study, raws: Raws, matched: Raws, check: Check) -> None:
    """Compares all headline figures of a study."""
    compare_one = functools.partial(_compare_estimate, check)
    ratio_of = functools.partial(functools.partial, _ratio, raws)
    baseline_n = study.plan.baseline_num_replicas
    for point in scaling.points(study):
        where = f"{point.backend} {point.mode.value} x{point.num_replicas}"
        own = functools.partial(_throughput, raws, point.case)
        compare_one("throughput", where, point.throughput, own)
        if not point.is_baseline and point.baseline is not None:
            both = ratio_of(point.case, point.baseline)
            compare_one("speedup", where, point.speedup, both, baseline_n)
            of_one = baseline_n / point.num_replicas
            compare_one("efficiency", where, point.efficiency, both, of_one)
    for pair in comparisons.of_study(study):
        first, second = pair.first.spec, pair.second.spec
        where = f"{first.backend} / {second.backend} {pair.modes[0].value}"
        where = f"{where} x{first.num_replicas}"
        compare_one(RATIO, where, pair.ratio, ratio_of(pair.first, pair.second))
    if twin := relay.twin_of(study):
        both = ratio_of(twin.control, twin.case)
        compare_one(CONTROL, twin.case.label, twin.ratio, both)
    for match in study.matches:
        if match.outcome is not Outcome.NOT_CHECKED:
            losses = functools.partial(_loss_difference, study, match, matched)
            _compare(check, LOSSES, match.label, match.loss_difference, losses)


def _compare(
    check: Check, kind: str, where: str, stated: object, recompute: Callable[[], object]
) -> None:
    where = f"{kind} of {where}"
    try:
        derived = recompute()
    except KeyError as missing:
        check.lack(kind, f"{where}: trial {missing.args[0]} has no raw observations")
        return
    if stated is not None or derived is not None:
        check.compare(kind, where, stated, derived, TOLERANCE)


def _compare_estimate(
    check: Check,
    kind: str,
    where: str,
    stated: Estimate | None,
    recompute: Callable[[], Figure | None],
    factor: float = 1.0,
) -> None:
    """Compares value, n and interval with a figure times a factor."""
    if stated is None:
        _compare(check, kind, where, None, recompute)
        return
    numbers = [of for of in (stated.value, stated.low, stated.high) if of is not None]
    widening = _WIDENING if "widened" in stated.method else 1.0

    def again() -> tuple[float, ...] | None:
        if (figure := recompute()) is None:
            return None
        halves = [0.0] if figure.half is None else [0.0, -figure.half, figure.half]
        logs = [figure.centre + widening * half for half in halves]
        derived = [factor * math.exp(log) for log in logs]
        if figure.is_least and len(numbers) == len(derived) == 3:  # noqa: PLR2004
            derived[1:] = min(derived[1], numbers[1]), max(derived[2], numbers[2])
        return (*derived, figure.n)

    if not stated.is_disturbed:
        _compare(check, kind, where, (*numbers, stated.n), again)


def _results(raws: Raws, entries: Iterable[Entry]) -> dict[Key, Fields]:
    """Returns raw results by repetition; raises KeyError of a trial without."""
    return {entry.key: raws[entry.trial_id].result for entry in entries}


def log_rates(results: Mapping[Key, Fields]) -> Logs:
    """Returns logs of examples per second of valid turns or windows, where any is."""
    found = {}
    for key, result in results.items():
        batch, turns = result["global_batch_size"], result["turns"]
        rates = {
            turn["round_index"]: batch * turn["num_steps"] / (ns / 1e9)
            for turn in turns
            if not (turn["is_void"] or turn["is_sustained"])
            and (ns := turn["end_ns"] - turn["start_ns"])
        }
        if not turns:
            rates = {0: batch * result["num_measured_steps"] / result["window_sec"]}
        found[key] = {index: math.log(rate) for index, rate in rates.items()}
    return {key: logs for key, logs in found.items() if logs}


def _throughput(raws: Raws, case: Case) -> Figure | None:
    rates = log_rates(_results(raws, case.ok_entries))
    return over_rounds([[*of.values()] for of in rates.values()]) if rates else None


def _ratio(raws: Raws, first: Case, second: Case) -> Figure | None:
    """Returns the ratio of two cases, in pairs of rounds or repetitions if possible."""
    sides = [_results(raws, case.measured_entries) for case in (first, second)]
    here, there = map(log_rates, sides)
    if not first.is_in_relay and here.keys() != there.keys():
        groups = [[of[0] for of in side.values()] for side in (here, there)]
        if not all(groups):
            return None
        n = min(map(len, groups))
        centre = statistics.fmean(groups[0]) - statistics.fmean(groups[1])
        return Figure(centre, None if n == 1 else 0.0, n, is_least=True)
    logs = _differences(here, there)
    if not logs:
        return None
    turns = [turn for of in sides for result in of.values() for turn in result["turns"]]
    are_void = [turn["is_void"] for turn in turns if not turn["is_sustained"]]
    has_load = sum(are_void) > _MOST_VOID * len(are_void)
    return over_rounds([*logs.values()])._replace(is_least=has_load)


def _differences(here: Logs, there: Logs) -> dict[Key, list[float]]:
    """Returns differences of the rounds that both have, by generation with any."""
    found = {
        key: [here[key][r] - there[key][r] for r in here[key] if r in there[key]]
        for key in sorted(here.keys() & there.keys())
    }
    return {key: logs for key, logs in found.items() if logs}


def over_rounds(logs: Sequence[Sequence[float]]) -> Figure:
    """Returns a mean over generations; of one alone, from batches of its rounds.

    The interval is Student's over means of generations, or of rounds if that is wider,
    which takes the variance within generations as the only one.
    """
    means = [statistics.fmean(of) for of in logs]
    centre, number = statistics.fmean(means), len(logs)
    if number == 1:
        num_rounds = len(logs[0])
        num_batches = min(max(math.isqrt(num_rounds), 10), 30, num_rounds // 2)
        if num_batches < 2:  # noqa: PLR2004 - an interval needs two
            return Figure(centre, None, 1)
        means = [float(of.mean()) for of in np.array_split(logs[0], num_batches)]
    half = _half(statistics.variance(means) / len(means), len(means) - 1)
    if number > 1 and (degrees := sum(map(len, logs)) - number):
        within = sum(statistics.pvariance(of) * len(of) for of in logs) / degrees
        squares = within * sum(1 / len(of) for of in logs) / number**2
        half = max(half, _half(squares, degrees))
    return Figure(centre, half, number)


def _half(squared_error: float, degrees: int) -> float:
    from scipy import stats

    return float(stats.t.isf(0.025, degrees)) * math.sqrt(squared_error)


def _loss_difference(study: Study, match: Match, raws: Raws) -> float:
    """Returns by how much the first losses of N replicas and of one differ."""
    planned = () if study.plan.matching is None else study.plan.matching.trials
    losses = []
    for trial_id, spec in ((of.trial_id, of.spec) for of in planned):
        is_same = spec.global_batch_size == match.global_batch_size
        is_own = (spec.backend, spec.num_replicas) == (
            match.backend,
            match.num_replicas,
        )
        if is_same and (is_own or spec.num_devices == 1):
            ranks = [rank["losses"] for rank in raws[trial_id].result["ranks"]]
            losses.append([statistics.fmean(of) for of in zip(*ranks, strict=False)])
    pairs = [*zip(*losses, strict=False)][: matching.NUM_STEPS]
    if len(pairs) < matching.NUM_STEPS:
        return math.inf
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)
