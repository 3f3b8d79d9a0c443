"""The first screen in words: a table of what was measured, and one sentence.

A row per backend and scaling mode, at its most replicas: rate, parallel efficiency, and
over how many runs. The sentences say how well the fastest backend scales, which backend
is faster, and what most of the time is lost to. Every figure that has an interval is
written with it. ``reports/words/verdict.py`` has all findings in full.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING

from reports.words import (
    formats,
    judgement,
    marks,
    next_step,
    trust,
    utilisation,
    verdict,
)
from reports.words.judgement import rule_text
from reports.words.marks import Level
from results import errors
from results.judging import gate as gate_lib
from results.judging import judged_case, paired_gate
from results.records.models import Order, TrialStatus
from results.statistics.group_sequential import Verdict
from results.study.cases import MISSING, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from reports.words.marks import Mark
    from results.figures.scaling import Comparison, Point
    from results.records.models import GateCase, GateRecord
    from results.statistics.estimates import Estimate
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
            return gate_lib.NO_VERDICT
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
        case
        for case in counts
        if case.verdict in (Verdict.REGRESS.value, judged_case.ROSE)
    ]
    # From 0 there is no share.
    rose.sort(
        key=lambda case: (
            case.verdict == judged_case.ROSE,
            -(case.slowdown or math.inf),
        )
    )
    said = "".join(
        f" {case.name} rose from {case.before:.15g} to {case.after:.15g}, exactly"
        f"{' (not judged)' * (case.verdict == judged_case.ROSE)}."
        for case in rose[:_MOST_COUNTS]
    )
    num_more = len(rose) - _MOST_COUNTS
    return said + f" So did {formats.count(num_more, 'more count')}." * (num_more > 0)


def change(case: GateCase) -> str:
    """Writes a slowdown with its interval, such as +3.0 % [+1.0, +5.0]; or a count."""
    if case.before is not None and case.after is not None:
        sides = case.before, case.after
        share = f"{judged_case.share_text(*sides)}, " * (
            case.before not in (0, case.after)
        )
        return share + judged_case.exact_text(*sides)
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
        record = gate_lib.read_gate(view.store)
    except (errors.CorruptRecordError, errors.NewerSchemaError) as error:
        why_none = f"its record cannot be read: {error}"
    of_plan = derived(view.study)
    has_ended = all(entry.state not in _NOT_ENDED for entry in view.study.planned)
    if of_plan is not None and (record is not None or has_ended):
        record = of_plan
    head = sorted(next_step.commits_of(view.study.cases))
    others = sorted(next_step.commits_of(view.study.other_revisions))
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
    found = gate_lib.of_plan(study)
    return None if found is None else judgement.record_of(found)


def _rule(study: Study, record: GateRecord) -> str:
    cases = [case for case in record.cases if case.after is None]
    design, rates = study.plan.measuring.gate, None
    if study.other_revisions and cases:
        has_looks = design is not None and design.looks
        number = None if has_looks else study.plan.repeats
        rates = paired_gate.of_gate(len(cases), number, record.alpha)
    return rule_text(
        record.worse, record.delta, record.alpha, rates, is_advice=record.is_advice
    )


def _is_gate(study: Study) -> bool:
    is_verb = gate_lib.VERB in study.plan.command[:5]
    return is_verb or any(entry.spec.revision for entry in study.planned)


_LONGEST_REASON = 20  # words


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """One backend in one scaling mode, at its most replicas."""

    backend: str  # Its name.
    mode: str  # Weak or strong.
    num_replicas: int  # As many as were measured, without those that have no core each.
    rate: str  # Throughput with its interval.
    efficiency: str  # Parallel efficiency with its interval, or why there is none.
    how_sure: str  # What the interval is over, or why there is none.

    @property
    def cells(self) -> tuple[str, ...]:
        """Its texts, as ``columns`` names them."""
        size = str(self.num_replicas)
        return self.backend, self.mode, size, self.rate, self.efficiency, self.how_sure


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """The verdict of the first screen."""

    level: Level  # The worst of the marks.
    # What was found; of a study that scales, first how well the fastest backend does.
    sentences: tuple[str, ...]
    verdict: str = ""  # Of a gate: its first word.
    trust: str = ""  # ``Reliable``, or what limits it; empty if nothing was measured.
    rows: tuple[MeasuredRow, ...] = ()  # The table; empty if nothing was measured.
    # What would settle the rest in parts, and whether each is typed as a command.
    next_parts: tuple[tuple[str, bool], ...] = ()
    # What numbers in brackets are, and of how many repetitions; empty where nothing was
    # measured.
    note: str = ""

    @property
    def next_step(self) -> str:
        """What would settle the rest, as plain text."""
        return "".join(text for text, _ in self.next_parts)

    @property
    def text(self) -> str:
        """All of it but the table, for readers who have no other."""
        parts = [f"{self.verdict}:" if self.verdict else "", *self.sentences]
        parts.append(f"{self.trust}." if self.trust else "")
        parts.append(f"Next: {self.next_step}." if self.next_step else "")
        return " ".join(part for part in parts if part)


def judge(view: View) -> Brief:
    """Returns the verdict on a study."""
    gate = of_view(view)
    if gate is not None:
        return Brief(
            verdict=gate.verdict.upper(), level=gate.level, sentences=(gate.sentence,)
        )
    found = marks.of_view(view)
    level = marks.worst(found)
    if not view.is_anything_measured:
        return _only(
            nothing_measured(view), Level.BAD, following=next_step.after_failures(view)
        )
    points, compared = verdict.findings_of_leader(view)
    reasons = (
        trust.busy(view),
        trust.evidence_caveat(view.study),
        trust.why_implausible(view),
    )
    doubts = tuple(text for text in reasons if text)
    if not points:
        alone = "Throughput was measured, of one case: there is no ratio."
        return dataclasses.replace(
            _only(alone, level, following=next_step.with_a_baseline(view)),
            sentences=(alone, *doubts),
            rows=rows_of(view),
            note=_when(view),
        )
    sentences = (
        _scaling(points),
        _comparison(view, points, compared),
        utilisation.sentence(view, points),
        *doubts,
    )
    return Brief(
        trust=trust_words(found),
        level=level,
        sentences=tuple(text for text in sentences if text),
        rows=rows_of(view),
        next_parts=_parts_of(next_step.choose(view, level, points, compared)),
        note=_note(view, points),
    )


def _only(text: str, level: Level, following: str = "") -> Brief:
    parts = _parts_of(following)
    return Brief(level=level, sentences=(text,), next_parts=parts)


def _parts_of(text: str) -> tuple[tuple[str, bool], ...]:
    """Splits text in which backticks enclose what is typed."""
    return tuple(
        (part, bool(number % 2)) for number, part in enumerate(text.split("`")) if part
    )


def columns(view: View) -> tuple[str, ...]:
    """Returns the names of the columns of the table, with the unit of the rate."""
    return "backend", "mode", "replicas", view.rate_unit, "efficiency", "interval over"


def rows_of(view: View) -> tuple[MeasuredRow, ...]:
    """Returns the most replicas of every backend and mode, in planned order."""
    return tuple(_row(view, point) for point in verdict.most_replicas(view))


def _row(view: View, point: Point) -> MeasuredRow:
    assert point.throughput is not None
    efficiency = point.efficiency
    text = "baseline" if point.is_baseline else point.missing_reason
    if efficiency is not None:
        text = formats.estimate(efficiency, formats.percent)
    if point.is_oversubscribed:
        text += ", oversubscribed"
    return MeasuredRow(
        backend=point.backend,
        mode=point.mode.value,
        num_replicas=point.num_replicas,
        rate=formats.estimate(point.throughput, formats.significant),
        efficiency=text,
        how_sure=_how_sure(view, efficiency or point.throughput),
    )


def _how_sure(view: View, estimate: Estimate) -> str:
    if not estimate.has_interval:
        return f"one {view.repetition}: no interval"
    if estimate.is_disturbed:
        return "beside load: no evidence"
    if not estimate.is_conclusive:
        return "these processes only"
    return f"{estimate.n} {view.repetitions}"


def _note(view: View, points: Sequence[Point]) -> str:
    """Says what is in brackets, and for when rates hold."""
    known = [p.efficiency for p in points if p.efficiency is not None]
    numbers = sorted({estimate.n for estimate in known})
    number = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    noun = view.repetition if numbers == [1] else view.repetitions
    text = f"In brackets: 95{formats.HARD_SPACE}% intervals, n = {number} {noun}"
    if not any(estimate.has_interval for estimate in known):
        text = f"n = {number} {noun}: no intervals"
    elif not any(estimate.is_conclusive or estimate.is_disturbed for estimate in known):
        text = f"In brackets: intervals of these processes only, n = {number} {noun}"
    elif view.study.plan.measuring.order is Order.RELAY:
        text += " of fresh processes; ratios hold for this machine"
    return f"{text}. {_when(view)}"


def _when(view: View) -> str:
    """Says for when rates hold: a rate has the weather of its hour, a ratio has not."""
    statuses = [
        entry.trial.status
        for entry in view.study.planned
        if entry.is_measured
        and entry.trial is not None
        and entry.trial.status is not None
    ]
    first = min(status.started_at for status in statuses)
    last = max(status.ended_at for status in statuses)
    minute = len("2026-01-01T00:00")
    begin, end = (text[:minute].replace("T", " ") for text in (first, last))
    if begin.partition(" ")[0] == end.partition(" ")[0]:
        end = end.partition(" ")[2]
    return f"Rates hold for this machine from {begin} to {end} UTC."


def trust_words(found: Sequence[Mark]) -> str:
    """Says how far to trust the figures, naming the marks that limit it."""
    level = marks.worst(tuple(found))
    if level is Level.OK:
        return "Reliable"
    words = "Not reliable" if level is Level.BAD else "Caution"
    names = ", ".join(mark.name.lower() for mark in found if mark.level is level)
    return f"{words}: {names}"


def nothing_measured(view: View) -> str:
    """Says why nothing was measured: the commonest reason of the failures."""
    planned = view.study.planned
    failed = [
        entry.reason.rstrip(".")
        for entry in planned
        if entry.state in {status.value for status in TrialStatus}
    ]
    if not failed:
        number = formats.count(len(planned), "planned trial")
        return f"Nothing was measured: none of {number} is ok."
    # The first of equally frequent ones, so that the page is the same in every run.
    ((reason, times_seen),) = collections.Counter(failed).most_common(1)
    words = reason.split()
    if len(words) > _LONGEST_REASON:
        reason = " ".join(words[:_LONGEST_REASON]) + "…"
    of = formats.count(len(planned), "planned trial")
    return f"Nothing was measured: {reason} ({times_seen} of {of})."


def _scaling(points: Sequence[Point]) -> str:
    """Says what a backend keeps, in each mode."""
    parts: list[str] = []
    before = None
    for point in points:
        assert point.efficiency is not None
        part = formats.estimate(point.efficiency, formats.percent)
        if not parts:
            part += " efficiency"
        if point.num_replicas != before:
            part += f" on {formats.count(point.num_replicas, 'replica')}"
        before = point.num_replicas
        parts.append(f"{part} in {point.mode.value} scaling")
    if len(parts) > 1:  # only once
        parts = [*(p.removesuffix(" scaling") for p in parts[:-1]), parts[-1]]
    beside = any(p.efficiency is not None and p.efficiency.is_disturbed for p in points)
    caveat = ", measured beside load: no evidence" * beside
    return f"{points[0].backend} keeps {' and '.join(parts)}{caveat}."


def _comparison(
    view: View, points: Sequence[Point], compared: Sequence[Comparison]
) -> str:
    backend = points[0].backend
    others = [name for name in view.study.backends if name != backend]
    if not others:
        return f"Only {backend} was measured." if view.study.program is None else ""
    same = [item for item in compared if points[0].mode in item.modes]
    if not same:
        what = others[0] if len(others) == 1 else f"{len(others)} other backends"
        return f"No comparison with {what}."
    ratios = []
    for item in same:
        assert item.ratio is not None
        is_first = item.first.spec.backend == backend
        other = item.second if is_first else item.first
        ratios.append((item.ratio, is_first, other.spec.backend, item.holds))
    conclusive = [(ratio, is_first) for ratio, is_first, _, holds in ratios if holds]
    wins = [is_first == (ratio.value > 1) for ratio, is_first in conclusive]
    if len(same) > 1:
        among = verdict.among(same[0])
        if len(wins) == len(same) and all(wins):
            return f"{backend} is the fastest of {len(same) + 1} backends, {among}."
        num_faster, num_slower = wins.count(False), wins.count(True)
        return (
            f"Of {len(same)} others, {num_slower} are slower, {num_faster} faster, "
            f"{len(same) - len(wins)} inconclusive, {among}."
        )
    ratio, is_first, other_name, _ = ratios[0]
    figures = formats.estimate(_of_leader(ratio, is_first=is_first), formats.times)
    # The ratio of one mode, where efficiencies of two are named.
    mode = f" in {points[0].mode.value} scaling" if len(points) > 1 else ""
    if not conclusive:
        return f"{backend} against {other_name}{mode}: {figures}, inconclusive."
    return f"{backend} is {figures} as fast as {other_name}{mode}."


def _of_leader(ratio: Estimate, *, is_first: bool) -> Estimate:
    """Returns a ratio from the side of the leading backend."""
    if is_first:
        return ratio
    low, high = ratio.low, ratio.high
    is_known = low is not None and high is not None and low > 0
    return dataclasses.replace(
        ratio,
        value=1 / ratio.value,
        low=1 / high if is_known and high is not None else None,
        high=1 / low if is_known and low is not None else None,
    )
