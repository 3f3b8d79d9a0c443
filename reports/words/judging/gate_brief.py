"""The first screen of a gate: its verdict, which no efficiency can stand in for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from reports.words import formats, reproduce
from reports.words.judging import judgement
from reports.words.judging.judgement import rule_text
from reports.words.marks import Level
from results import errors
from results.judging import error_rates, exact, gate_file, look
from results.statistics.judge import Verdict
from results.study.cases import MISSING, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from results.records.gate_record import GateCase, GateRecord
    from results.study.cases import Study

_MOST_COUNTS = 3
_NOT_ENDED = (MISSING, UNFINISHED)
_LEVELS = {"pass": Level.OK, "improve": Level.OK, "regress": Level.BAD}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateView:
    """The study of a gate."""

    # What it concluded; None where it has not, or that cannot be read.
    record: GateRecord | None
    why_none: str  # Why there is no record; empty if there is.
    head: str  # Commits of the tree that was judged.
    # Commits of the tree that it was compared with; of a stored study its name.
    base: str
    rule: str  # What matters, and how often such a gate errs.

    @property
    def verdict(self) -> str:
        """One word, or two."""
        if self.record is None:
            return gate_file.NO_VERDICT
        return "advice: " * self.record.is_advice + self.record.verdict

    @property
    def level(self) -> Level:
        """Good only where the gate lets the change pass."""
        if self.record is None or self.record.is_advice:
            return Level.CAUTION
        level = _LEVELS.get(self.record.verdict, Level.CAUTION)
        is_passed = level is not Level.OK or self.record.is_pass
        return level if is_passed else Level.CAUTION

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, with the worst change and its interval."""
        record = self.record
        if record is None:
            return f"The gate on {self.head} gave no verdict: {self.why_none}."
        counts = [case for case in record.cases if case.after is not None]
        more = _counted(counts)
        if record.unfit:
            return f"No verdict on {record.metric}: {record.unfit}.{more}"
        what = f"{record.metric} of {self.head} against {self.base}"
        timed = [case for case in record.cases if case not in counts]
        known = [case for case in timed if case.slowdown is not None]
        if not known:
            return f"{what}: no case could be judged.{more}"
        worst = max(known, key=lambda case: case.slowdown or 0.0)
        return (
            f"{what}: at worst {change(worst)} {record.worse} ({worst.name}); "
            f"{formats.percent(record.delta)} matters.{more}"
        )


def _counted(counts: Sequence[GateCase]) -> str:
    """Says what rose, beginning with what is judged and rose the most."""
    rose = [
        case for case in counts if case.verdict in (Verdict.REGRESS.value, exact.ROSE)
    ]
    # From 0 there is no share.
    rose.sort(
        key=lambda case: (case.verdict == exact.ROSE, -(case.slowdown or math.inf))
    )
    said = "".join(
        f" {case.name} rose from {case.before:.15g} to {case.after:.15g}, exactly"
        f"{' (not judged)' * (case.verdict == exact.ROSE)}."
        for case in rose[:_MOST_COUNTS]
    )
    num_more = len(rose) - _MOST_COUNTS
    return said + f" So did {formats.count(num_more, 'more count')}." * (num_more > 0)


def change(case: GateCase) -> str:
    """Writes a slowdown with its interval, such as +3.0 % [+1.0, +5.0]; or a count."""
    if case.before is not None and case.after is not None:
        sides = case.before, case.after
        share = f"{exact.share_text(*sides)}, " * (case.before not in (0, case.after))
        return share + exact.exact_text(*sides)
    if case.slowdown is None:
        return formats.ABSENT
    return formats.with_interval(
        case.slowdown, case.low, case.high, formats.signed_percent
    )


def of_view(view: View) -> GateView | None:
    """Returns what the gate of a study concluded; None of a study without one."""
    if not _is_gate(view.study):
        return None
    record, why_none = None, "it has not concluded, or was stopped before"
    try:
        record = gate_file.read(view.store)
    except (errors.CorruptRecordError, errors.NewerSchemaError) as error:
        why_none = f"its record cannot be read: {error}"
    of_plan = derived(view.study)
    has_ended = all(entry.state not in _NOT_ENDED for entry in view.study.planned)
    if of_plan is not None and (record is not None or has_ended):
        record = of_plan
    head = sorted(reproduce.commits_of(view.study.cases))
    others = sorted(reproduce.commits_of(view.study.other_revisions))
    base = ", ".join(others) or "its baseline"
    if record is not None and not others:
        base = record.baseline
    return GateView(
        record=record,
        why_none="" if record is not None else why_none,
        head=", ".join(head) or "this tree",
        base=base,
        rule="" if record is None else _rule(view.study, record),
    )


def derived(study: Study) -> GateRecord | None:
    """Returns what the plan and the trials of a gate of two revisions say.

    None of other studies, and against a stored study, which is elsewhere.
    """
    found = look.of_plan(study)
    return None if found is None else judgement.record_of(found)


def _rule(study: Study, record: GateRecord) -> str:
    cases = [case for case in record.cases if case.after is None]
    design, rates = study.plan.measuring.gate, None
    if study.other_revisions and cases:
        has_looks = design is not None and design.looks
        number = None if has_looks else study.plan.repeats
        rates = error_rates.of_gate(len(cases), number, record.alpha)
    return rule_text(
        record.worse, record.delta, record.alpha, rates, is_advice=record.is_advice
    )


def _is_gate(study: Study) -> bool:
    is_verb = gate_file.VERB in study.plan.command[:5]
    return is_verb or any(entry.spec.revision for entry in study.planned)
