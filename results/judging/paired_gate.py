"""Verdicts on two revisions that were measured in the same rounds.

The rule is that of ``results/statistics/group_sequential.py``: looks after some
generations, the first of which that is clear ends the gate. What a case is said to be
is what it was at the look that decided it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from results.judging import gate_logs, gate_metrics
from results.judging.judged_case import JudgedCase, name_of
from results.statistics import estimates, group_sequential
from results.statistics.estimates import Estimate
from results.statistics.group_sequential import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.gate_metrics import Rule
    from results.statistics.group_sequential import Kind, Look
    from results.study.cases import Case


# ``make statistics`` writes the table, of gates of 1, 3 and 6 cases that look, and with
# fixed numbers of generations, under truths whose generations do or do not depend on
# each other.

PATH: Final = Path(__file__).with_name("error_rates.json")
ALPHA: Final = 0.05
NUMBERS: Final = (3, 4, 5, 6, 8, 10, 15, 20, 40)
"""Generations of gates with one look."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Probabilities at worst."""

    passes: float  # That a true mean of ``delta`` or more passes.
    regresses: float  # That equal programs regress.
    passes_dependent: float  # The same where generations depend on each other.
    regresses_dependent: float  # The same where generations depend on each other.


def of_gate(num_cases: int, num_generations: int | None, alpha: float) -> Rates | None:
    """Returns the rates of a gate; None at an ``alpha`` that was not simulated."""
    if alpha != ALPHA:
        return None
    if num_generations is not None:
        num_generations = max(
            (number for number in NUMBERS if number <= num_generations),
            default=NUMBERS[0],
        )
    table = [row for row in error_rate_rows() if row["generations"] == num_generations]
    fewer = max(row["cases"] for row in table if row["cases"] <= num_cases)
    more = [row for row in table if row["cases"] >= num_cases] or table[-1:]
    found = [row for row in table if row["cases"] in (fewer, more[0]["cases"])]

    def most(kind: str, verdict: str) -> float:
        return max(float(row[kind][verdict][0]) for row in found)

    return Rates(
        passes=most("independent", "pass"),
        regresses=most("independent", "regress"),
        passes_dependent=most("dependent", "pass"),
        regresses_dependent=most("dependent", "regress"),
    )


@functools.cache
def error_rate_rows() -> list[dict[str, Any]]:
    """Returns the table."""
    found: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


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
    """How a gate looked at its generations."""

    num_generations: int  # Generations that are there.
    # Generations at the look that ended the gate; None where none did.
    decided_after: int | None
    looks: tuple[int, ...]  # All looks, up to the last generation.
    most: int  # Generations after which it ends in any case.
    fewest: int  # Generations that a pass needs.
    widening: float  # Of the intervals, for generations that may depend on each other.
    # How often such a gate errs, simulated; None at another ``alpha``.
    rates: Rates | None
    # Generations in which processes of the change stand out as slow; see
    # ``group_sequential.singles``.
    num_slower: int
    num_faster: int  # The same of the baseline.
    stands_out: float  # Ratio of times from which a process does.
    p_value: float  # Of so many slower ones or more, were both sides equal.
    has_slow_processes: bool  # Whether the change has slow processes.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JudgedPairs:
    """Cases with their verdicts, and how the gate looked at them."""

    cases: tuple[JudgedCase, ...]
    paired: Paired


def judge(
    pairs: Sequence[tuple[Case, Case]], rule: Rule, planned: Sequence[int]
) -> JudgedPairs:
    """Judges all cases of a gate."""
    logs = gate_logs.of_pairs(pairs, rule.metric)
    if rule.metric is gate_metrics.EFFICIENCY:
        pairs = [pairs[own] for own, _ in gate_logs.scaled(pairs)]
    main, first = next(iter(logs.items()))
    number = max(first.shape[0], 1)
    looks = group_sequential.looks_until(number, planned)
    if not first.shape[0]:  # no trial is ok: nothing is known of any case
        logs = {main: np.full((1, len(pairs)), np.nan)}
    design = group_sequential.Design(
        looks=looks,
        most=max((number, *planned)),
        delta=rule.delta,
        alpha=rule.alpha,
    )
    of_one = {kind: values[None] for kind, values in logs.items()}
    found = group_sequential.outcomes(of_one, design)
    end = int(found.ends[0])
    seen = {
        (kind, look): group_sequential.look(values, kind, design, number=look)
        for kind, values in logs.items()
        for look in {*found.decided_at[kind][0].tolist(), end} - {0}
    }
    cases = []
    for index, (case, _) in enumerate(pairs):
        judged: dict[Kind, Judgement | None] = {}
        for kind, values in logs.items():
            at = int(found.decided_at[kind][0, index]) or end
            code = int(found.of_cases[kind][0, index])
            n = int((~np.isnan(values[:at, index])).sum())
            margins = 1.0 if kind.margins is None else kind.margins
            judged[kind] = _judgement(
                seen[kind, at], index, n, VERDICTS[code], margins * rule.delta, rule
            )
        of_main = judged.pop(main)
        n = int((~np.isnan(logs[main][:, index])).sum())
        fewest = group_sequential.FEWEST_TO_JUDGE
        reason = ""
        if n < fewest:
            reason = f"{n} run(s) have both, a verdict needs {fewest} or more"
        cases.append(
            JudgedCase(
                name=name_of(case),
                case=case,
                judgement=of_main,
                reason=reason,
                others={
                    kind.name: of
                    for kind, of in judged.items()
                    if of is not None and _counts(of, kind)
                },
            )
        )
    singles = group_sequential.singles(logs[main], design, number=end)
    is_decided = int(found.verdicts[0]) != group_sequential.UNDECIDED
    return JudgedPairs(
        cases=tuple(cases),
        paired=Paired(
            num_generations=first.shape[0],
            decided_after=end if is_decided else None,
            looks=looks,
            most=design.most,
            fewest=group_sequential.fewest_to_pass(rule.alpha),
            widening=float(seen[main, end].widening),
            rates=of_gate(len(pairs), None if planned else number, rule.alpha),
            num_slower=int(singles.num_slower),
            num_faster=int(singles.num_faster),
            stands_out=float(np.exp(singles.threshold)),
            p_value=float(singles.p_value),
            has_slow_processes=bool(singles.holds),
        ),
    )


def _counts(of: Judgement, kind: Kind) -> bool:
    """Whether a judgement is part of the verdict: some kinds only ever regress."""
    return kind.margins is not None or of.verdict is Verdict.REGRESS


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
