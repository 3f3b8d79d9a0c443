"""Verdicts on two revisions that were measured in the same rounds.

The rule is in ``results/statistics/group_sequential.py``. Judged are log slowdowns by
repetition and case: of blocks, the mean over rounds of ln(baseline / change); of
sustained stretches, the ratio of mean step times and of 99th percentiles, which show a
slow step in fifty that a mean of logarithms hides; else one number of each process.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from results import errors
from results.figures import lost_time, scaling
from results.judging.gate_metrics import EFFICIENCY, THROUGHPUT, JudgedCase, name_of
from results.statistics import estimates, group_sequential
from results.statistics.estimates import Estimate
from results.statistics.group_sequential import Judgement, Verdict

if TYPE_CHECKING:
    from results.judging.gate_metrics import Metric, Rule
    from results.records.models import TrialResult
    from results.statistics.group_sequential import Kind, Look, Singles
    from results.study.cases import Case, Entry, Key

    Pairs = Sequence[tuple[Case, Case]]
    OfTrials = Callable[[Entry, Entry], float]


# ``make statistics`` writes the table.

PATH: Final = Path(__file__).with_name("error_rates.json")
ALPHA: Final = 0.05


class Rates(NamedTuple):
    """Probabilities that a gate errs, at worst."""

    passes: float  # That a true mean of ``delta`` or more passes.
    regresses: float  # That equal programs regress.
    passes_dependent: float  # The same where repetitions depend on each other.
    regresses_dependent: float


def stated_rates(
    num_cases: int, num_repetitions: int | None, alpha: float
) -> Rates | None:
    """Returns how often a gate with delta 5 % errs, simulated.

    Of a gate with one look after ``num_repetitions``, or with several (None). None at
    an ``alpha`` that was not simulated.
    """
    if alpha != ALPHA:
        return None
    rows = error_rate_rows()
    if num_repetitions is not None:
        numbers = {row["repetitions"] for row in rows} - {None}
        known = (number for number in numbers if number <= num_repetitions)
        num_repetitions = max(known, default=min(numbers))
    table = [row for row in rows if row["repetitions"] == num_repetitions]
    fewer = max(row["cases"] for row in table if row["cases"] <= num_cases)
    more = [row for row in table if row["cases"] >= num_cases] or table[-1:]
    rows = [row for row in table if row["cases"] in (fewer, more[0]["cases"])]
    return Rates(
        *(
            max(float(row[kind][verdict][0]) for row in rows)
            for kind in ("independent", "dependent")
            for verdict in ("pass", "regress")
        )
    )


@functools.cache
def error_rate_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return rows


TAIL_QUANTILE = 0.99
_FEWEST: Final = group_sequential.FEWEST_TO_JUDGE


def slowdown_logs(pairs: Pairs, metric: Metric) -> Mapping[Kind, np.ndarray]:
    """Returns log slowdowns by kind, over repetitions and cases; NaN where none is.

    ``pairs`` are the cases of a change, each with the same case of its baseline. Of the
    efficiency, a case stands for what it loses beyond its fewest replicas.
    """
    if metric is EFFICIENCY:
        logs = slowdown_logs(pairs, THROUGHPUT)
        columns = scaled(pairs)
        return {
            kind: np.stack(
                [table[:, own] - table[:, base] for own, base in columns], axis=1
            )
            for kind, table in logs.items()
            if kind is not group_sequential.TAIL  # no percentile of a ratio
        }
    is_interleaved = metric is THROUGHPUT and all(
        case.is_interleaved for case, _ in pairs
    )
    if not is_interleaved:
        sign = 1.0 if metric.is_cost else -1.0

        def trial_log(here: Entry, there: Entry) -> float:
            both = metric.of(here), metric.of(there)
            if min(both) <= 0:  # it could not be read
                return math.nan
            return sign * (math.log(both[0]) - math.log(both[1]))

        return {group_sequential.PROCESSES: _array(pairs, trial_log)}
    kinds = {group_sequential.BLOCKS: _array(pairs, _block_log)}
    for kind, figure in (
        (group_sequential.SUSTAINED, np.mean),
        (group_sequential.TAIL, functools.partial(np.quantile, q=TAIL_QUANTILE)),
    ):
        values = _array(pairs, functools.partial(_stretch_log, figure=figure))
        if not np.isnan(values).all():
            kinds[kind] = values
    return kinds


def scaled(pairs: Pairs) -> list[tuple[int, int]]:
    """Returns pairs that have an efficiency, each with its smallest baseline."""
    scaled_pairs = []
    for own, (case, _) in enumerate(pairs):
        smaller = [
            (other.spec.num_replicas, base)
            for base, (other, _) in enumerate(pairs)
            if other.spec.backend == case.spec.backend
            and other.spec.num_replicas < case.spec.num_replicas
            and set(other.modes) & set(case.modes)
        ]
        if smaller:
            scaled_pairs.append((own, min(smaller)[1]))
    if not scaled_pairs:
        raise errors.ResultsError(
            "no case has a baseline with fewer replicas, so there is no efficiency to"
            " judge; measure two numbers of replicas or more, such as --replicas 1,2"
        )
    return scaled_pairs


def _array(pairs: Pairs, trial_log: OfTrials) -> np.ndarray:
    cases = itertools.chain(*pairs)
    keys: list[Key] = sorted({entry.key for case in cases for entry in case.ok_entries})
    table = np.full((len(keys), len(pairs)), np.nan)
    for column, pair in enumerate(pairs):
        for here, there in scaling.paired(*pair):
            table[keys.index(here.key), column] = trial_log(here, there)
    return table


def _block_log(here: Entry, there: Entry) -> float:
    logs = estimates.log_ratios(there.result.rates, here.result.rates)
    return estimates.mean(logs) if logs else math.nan


def stretches(result: TrialResult) -> dict[int, np.ndarray]:
    """Returns the step times of each valid sustained stretch of a trial, by round."""
    steps = result.steps_of_blocks(is_sustained=True)
    # A step ends with the slowest process.
    return {index: np.max(of_ranks, axis=0) for index, of_ranks in steps.items()}


def sustained_over_blocks(pairs: Pairs) -> Estimate | None:
    """Estimates the time of steps in a row over that of steps of blocks."""
    by_repetition: dict[Key, list[float]] = {}
    for case in itertools.chain(*pairs):
        for entry in case.ok_entries:
            in_a_row = stretches(entry.result)
            blocks = lost_time.rounds_of(entry.result)
            if in_a_row and blocks:
                time = float(np.concatenate([*in_a_row.values()]).mean())
                of_blocks = float(np.mean([max(times) for times in blocks.values()]))
                excess = by_repetition.setdefault(entry.key, [])
                excess.append(math.log(time / of_blocks))
    logs = [estimates.mean(times) for times in by_repetition.values()]
    return estimates.over_repetitions(logs) if logs else None


def _stretch_log(
    here: Entry, there: Entry, figure: Callable[[np.ndarray], Any]
) -> float:
    ours, theirs = stretches(here.result), stretches(there.result)
    rounds = sorted(ours.keys() & theirs.keys())
    if not rounds:
        return math.nan
    first, second = (
        float(figure(np.concatenate([side[index] for index in rounds])))
        for side in (ours, theirs)
    )
    return math.log(first) - math.log(second)


METHOD = (
    "Student's t over runs of the log slowdown, at the level that is left for"
    " this interim analysis (Kim and DeMets 1987), widened for runs that may depend on "
    "each other; the lower end holds for all cases together (Holm)"
)
VERDICTS = {
    group_sequential.UNDECIDED: Verdict.INCONCLUSIVE,
    group_sequential.PASSED: Verdict.PASS,
    group_sequential.REGRESSED: Verdict.REGRESS,
    group_sequential.IMPROVED: Verdict.IMPROVE,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """How a gate looked at its repetitions."""

    num_repetitions: int  # Repetitions that are there.
    # Repetitions at the look that ended the gate; None where none did.
    decided_after: int | None
    looks: tuple[int, ...]  # All looks, up to the last repetition.
    most: int  # Repetitions after which it ends in any case.
    fewest: int  # Repetitions that a pass needs.
    widening: float  # Of the intervals, for repetitions that may depend on each other.
    # How often such a gate errs, simulated; None at another ``alpha``.
    rates: Rates | None
    singles: Singles  # Which single processes stand out, at the look that ended it.


def judge(
    pairs: Pairs, rule: Rule, planned: Sequence[int]
) -> tuple[list[JudgedCase], Paired]:
    """Judges all cases of a gate; also returns how it looked at them."""
    logs = slowdown_logs(pairs, rule.metric)
    if rule.metric is EFFICIENCY:
        pairs = [pairs[own] for own, _ in scaled(pairs)]
    main, first = next(iter(logs.items()))
    number = max(first.shape[0], 1)
    looks = group_sequential.looks_until(number, planned)
    if not first.shape[0]:  # no trial is ok: nothing is known of any case
        logs = {main: np.full((1, len(pairs)), np.nan)}
    design = group_sequential.Design(
        looks=looks, most=max((number, *planned)), delta=rule.delta, alpha=rule.alpha
    )
    of_one = {kind: values[None] for kind, values in logs.items()}
    outcome = group_sequential.outcomes(of_one, design)
    end = int(outcome.ends[0])
    seen = {
        (kind, look): group_sequential.look(values, kind, design, number=look)
        for kind, values in logs.items()
        for look in {*outcome.decided_at[kind][0].tolist(), end} - {0}
    }
    cases = []
    for index, (case, _) in enumerate(pairs):
        judged: dict[Kind, Judgement | None] = {}
        for kind, values in logs.items():
            at = int(outcome.decided_at[kind][0, index]) or end
            n = int((~np.isnan(values[:at, index])).sum())
            verdict = VERDICTS[int(outcome.of_cases[kind][0, index])]
            delta = rule.delta * (1.0 if kind.margins is None else kind.margins)
            judged[kind] = _judgement(seen[kind, at], index, n, verdict, delta, rule)
        of_main = judged.pop(main)
        # What cannot pass is part of the verdict where it regresses.
        others = {
            kind.name: each
            for kind, each in judged.items()
            if each is not None
            and (kind.margins is not None or each.verdict is Verdict.REGRESS)
        }
        n, fewest = int((~np.isnan(logs[main][:, index])).sum()), _FEWEST
        few = f"{n} run(s) have both, a verdict needs {fewest} or more"
        reason = few * (n < fewest)
        cases.append(JudgedCase(name_of(case), of_main, reason, case, others))
    singles = group_sequential.singles(logs[main], design, number=end)
    is_decided = int(outcome.verdicts[0]) != group_sequential.UNDECIDED
    paired = Paired(
        num_repetitions=first.shape[0],
        decided_after=end if is_decided else None,
        looks=looks,
        most=design.most,
        fewest=group_sequential.fewest_to_pass(rule.alpha),
        widening=float(seen[main, end].widening),
        rates=stated_rates(len(pairs), None if planned else number, rule.alpha),
        singles=singles,
    )
    return cases, paired


def _judgement(
    seen: Look, index: int, n: int, verdict: Verdict, delta: float, rule: Rule
) -> Judgement | None:
    if n < estimates.FEWEST_FOR_INTERVAL:
        return None
    slowdown = estimates.from_logs(
        Estimate(
            value=float(seen.mean[index]),
            low=float(seen.low[index]),
            high=float(seen.high[index]),
            n=n,
            unit="",
            method=METHOD,
            confidence=1 - 2 * rule.alpha,
        )
    )
    return Judgement(verdict=verdict, slowdown=slowdown, delta=delta, alpha=rule.alpha)
