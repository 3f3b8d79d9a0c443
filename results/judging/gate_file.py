"""The file ``gate.json`` of a study that a gate has measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from results.records.gate_record import GateCase, GateRecord
from results.records.limits import MAX_LINE
from results.statistics.judge import Verdict
from results.store import record_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results.judging.gate import Gate
    from results.judging.judged_case import JudgedCase
    from results.store.study_store import Store

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
    backend = "" if case.case is None else case.case.spec.backend
    judgement, verdict, count = case.judgement, case.verdict, case.count
    if count is not None:
        return GateCase(
            name=case.name,
            backend=backend,
            verdict=count.word,
            slowdown=count.rise,
            n=count.n,
            before=count.before,
            after=count.after,
        )
    if judgement is None or verdict is None:
        reason = case.reason[:MAX_LINE]
        return GateCase(
            name=case.name, backend=backend, verdict=NO_VERDICT, reason=reason
        )
    found = judgement.slowdown
    return GateCase(
        name=case.name,
        backend=backend,
        verdict=verdict.value,
        slowdown=_finite(found.value),
        low=_finite(found.low),
        high=_finite(found.high),
        n=found.n,
    )


def _finite(ratio: float | None) -> float | None:
    """Returns a change; None beyond all numbers, where half of the runs failed."""
    return ratio - 1 if ratio is not None and math.isfinite(ratio) else None


def write(store: Store, record: GateRecord) -> None:
    """Writes it; raises WriteStoreError if it cannot."""
    store.write_listed(GATE_NAME, record)


def read(store: Store) -> GateRecord | None:
    """Reads it; None where no gate has concluded."""
    path = store.root / GATE_NAME
    return record_file.read(path, "gate", GateRecord, is_public=store.is_public)
