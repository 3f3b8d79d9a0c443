"""What a gate judges of a study: log slowdowns by generation and case.

Of the turns of a relay, the mean over rounds of ln(baseline / change). Of its sustained
stretches, the ratio of arithmetic mean step times, and that of their 99th percentiles:
a step in fifty that takes ten times as long is in those, and hardly in a mean of
logarithms. Every other figure is one number of a process.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from results import errors
from results.figures import explain
from results.judging import gate_metrics
from results.records.limits import MAX_LINE
from results.records.models import GateCase, GateRecord
from results.statistics import generations, group_sequential
from results.statistics.group_sequential import Verdict
from results.store import record_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from results.judging.gate import Gate
    from results.judging.gate_metrics import Metric
    from results.judging.judged_case import JudgedCase
    from results.records.models import TrialResult
    from results.statistics.estimates import Estimate
    from results.statistics.group_sequential import Kind
    from results.store.study_store import Store
    from results.study.cases import Case, Entry, Key

    Pairs = Sequence[tuple[Case, Case]]
    OfTrials = Callable[[Entry, Entry], float | None]


TAIL_QUANTILE = 0.99


def of_pairs(pairs: Pairs, metric: Metric) -> Mapping[Kind, np.ndarray]:
    """Returns log slowdowns by kind of measurement, over generations and cases.

    Not a number where a generation of a case has none. Of an efficiency, columns are of
    ``scaled`` cases only: what a case is slower by, less what its baseline is.
    """
    if metric is gate_metrics.EFFICIENCY:
        found = of_pairs(pairs, gate_metrics.THROUGHPUT)
        columns = scaled(pairs)
        return {
            kind: np.stack([of[:, own] - of[:, base] for own, base in columns], axis=1)
            for kind, of in found.items()
            if kind is not group_sequential.TAIL  # no percentile of a ratio
        }
    is_relay = metric is gate_metrics.THROUGHPUT and all(
        case.is_in_relay for case, _ in pairs
    )
    if not is_relay:
        sign = 1.0 if metric.is_cost else -1.0

        def of_trials(here: Entry, there: Entry) -> float | None:
            both = metric.of(here), metric.of(there)
            if min(both) <= 0:  # it could not be read
                return None
            return sign * (math.log(both[0]) - math.log(both[1]))

        return {group_sequential.PROCESSES: _array(pairs, of_trials)}
    kinds = {group_sequential.TURNS: _array(pairs, _of_turns)}
    sustained = _array(pairs, _of_means)
    if not np.isnan(sustained).all():
        kinds[group_sequential.SUSTAINED] = sustained
        kinds[group_sequential.TAIL] = _array(pairs, _of_tails)
    return kinds


def scaled(pairs: Pairs) -> list[tuple[int, int]]:
    """Returns which pairs have an efficiency, each with that of its baseline.

    The baseline has the fewest replicas of the backend, in a mode of the case.
    """
    specs = [case.spec for case, _ in pairs]
    found = []
    for own, (case, _) in enumerate(pairs):
        smaller = [
            base
            for base, (other, _) in enumerate(pairs)
            if specs[base].backend == specs[own].backend
            and specs[base].num_replicas < specs[own].num_replicas
            and set(other.modes) & set(case.modes)
        ]
        if smaller:
            found.append((own, min(smaller, key=lambda at: specs[at].num_replicas)))
    if not found:
        raise errors.ResultsError(
            "no case has a baseline with fewer replicas, so there is no efficiency to"
            " judge; measure two numbers of replicas or more, such as --replicas 1,2"
        )
    return found


def _array(pairs: Pairs, of_trials: OfTrials) -> np.ndarray:
    sides = [
        [{entry.key: entry for entry in case.ok_entries} for case in pair]
        for pair in pairs
    ]
    keys: list[Key] = sorted({key for pair in sides for side in pair for key in side})
    found = np.full((len(keys), len(pairs)), np.nan)
    for column, (here, there) in enumerate(sides):
        for row, key in enumerate(keys):
            if key in here and key in there:
                value = of_trials(here[key], there[key])
                found[row, column] = np.nan if value is None else value
    return found


def _of_turns(here: Entry, there: Entry) -> float | None:
    logs = generations.log_ratios(there.result.rates, here.result.rates)
    return generations.mean(logs) if logs else None


def stretches(result: TrialResult) -> dict[int, np.ndarray]:
    """Returns the step times of each valid sustained stretch of a trial, by round.

    A step ends with the slowest process.
    """
    found: dict[int, np.ndarray] = {}
    if not any(turn.is_sustained for turn in result.turns):
        return found
    steps = np.max([rank.step_time_sec for rank in result.ranks], axis=0)
    start = 0
    for turn in result.turns:
        end = start + turn.num_steps
        if turn.is_sustained and turn.is_valid:
            found[turn.round_index] = steps[start:end]
        start = end
    return found


def sustained_over_turns(pairs: Pairs) -> Estimate | None:
    """Estimates the time of steps in a row over that of steps of turns.

    A check of the turns: of all cases and both sides, by generation. None where no
    trial has valid stretches and turns.
    """
    by_generation: dict[Key, list[float]] = {}
    for case in itertools.chain(*pairs):
        for entry in case.ok_entries:
            in_a_row = stretches(entry.result)
            turns = explain.rounds_of(entry.result)
            if in_a_row and turns:
                time = float(np.concatenate([*in_a_row.values()]).mean())
                of_turns = float(np.mean([max(of) for of in turns.values()]))
                found = by_generation.setdefault(entry.key, [])
                found.append(math.log(time / of_turns))
    logs = [generations.mean(of) for of in by_generation.values()]
    return generations.over_generations(logs) if logs else None


def _of_both(
    here: Entry, there: Entry, of: Callable[[np.ndarray], float]
) -> float | None:
    ours, theirs = stretches(here.result), stretches(there.result)
    rounds = sorted(ours.keys() & theirs.keys())
    if not rounds:
        return None
    first, second = (
        of(np.concatenate([side[index] for index in rounds])) for side in (ours, theirs)
    )
    return math.log(first) - math.log(second)


def _of_means(here: Entry, there: Entry) -> float | None:
    return _of_both(here, there, lambda steps: float(steps.mean()))


def _of_tails(here: Entry, there: Entry) -> float | None:
    return _of_both(here, there, lambda steps: float(np.quantile(steps, TAIL_QUANTILE)))


GATE_NAME: Final = "gate.json"
NO_VERDICT: Final = "no verdict"
VERB: Final = "gate"
_SOME_FAILED, _NOTHING_MEASURED, _UNFIT = 4, 5, 6
_CODES: Final = {
    Verdict.PASS: 0,
    Verdict.IMPROVE: 0,
    Verdict.REGRESS: 1,
    Verdict.INCONCLUSIVE: 3,
}


def code_of(gate: Gate) -> int:
    """Returns the exit code of a gate: trials that are not ok come before a verdict."""
    if gate.has_risen:
        return _CODES[Verdict.REGRESS]
    is_void = any(": void: " in failure for failure in gate.failures)
    if gate.failures and (gate.has_failed_trials or not is_void):
        return _SOME_FAILED if gate.num_ok else _NOTHING_MEASURED
    if gate.failures or gate.why_unfit or gate.verdict is None:
        return _UNFIT
    return _CODES[Verdict.INCONCLUSIVE if gate.is_advice else gate.verdict]


def record_of(
    gate: Gate, *, headline: str, exit_code: int, notes: Iterable[str] = ()
) -> GateRecord:
    """Returns what a gate concluded, as a record."""
    verdict = gate.verdict
    return GateRecord(
        verdict=NO_VERDICT if verdict is None else verdict.value,
        is_pass=exit_code == 0,
        headline=headline,
        metric=gate.metric.name,
        worse=gate.metric.worse,
        baseline=gate.baseline[:MAX_LINE],
        delta=gate.delta,
        alpha=gate.alpha,
        exit_code=exit_code,
        unfit=gate.why_unfit[:MAX_LINE],
        is_weaker=gate.is_weaker,
        is_advice=gate.is_advice,
        notes=tuple(notes),
        cases=tuple(map(_case, gate.all_cases)),
        failures=tuple(failure[:MAX_LINE] for failure in gate.failures),
    )


def _case(case: JudgedCase) -> GateCase:
    judgement, verdict, count = case.judgement, case.verdict, case.count
    found: dict[str, Any] = {"verdict": NO_VERDICT, "reason": case.reason[:MAX_LINE]}
    if count is not None:
        found = {"verdict": count.word, "slowdown": count.rise, "n": count.n}
        found |= {"before": count.before, "after": count.after}
    elif judgement is not None and verdict is not None:
        of = judgement.slowdown
        found = {"verdict": verdict.value, "slowdown": _finite(of.value), "n": of.n}
        found |= {"low": _finite(of.low), "high": _finite(of.high)}
    backend = "" if case.case is None else case.case.spec.backend
    return GateCase(name=case.name, backend=backend, **found)


def _finite(ratio: float | None) -> float | None:
    """Returns a change; None beyond all numbers, where half of the runs failed."""
    return ratio - 1 if ratio is not None and math.isfinite(ratio) else None


def write_gate(store: Store, record: GateRecord) -> None:
    """Writes it; raises WriteStoreError if it cannot."""
    store.write_listed(GATE_NAME, record)


def read_gate(store: Store) -> GateRecord | None:
    """Reads it; None where no gate has concluded."""
    path = store.root / GATE_NAME
    return record_file.read(path, "gate", GateRecord, is_public=store.is_public)
