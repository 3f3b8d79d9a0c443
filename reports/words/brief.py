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
from typing import TYPE_CHECKING, NamedTuple

from reports.words import formats, judgement, marks, next_step, trust, verdict
from reports.words.marks import Level
from results import errors
from results.judging import gate as gate_lib
from results.judging import judged_case, paired_gate
from results.records.models import TrialStatus
from results.statistics.group_sequential import Verdict
from results.study.cases import MISSING, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view import View
    from reports.words.marks import Mark
    from results.figures.scaling import Comparison, Point
    from results.records.models import GateCase, GateRecord
    from results.statistics.estimates import Estimate
    from results.study.cases import Study


_MOST_COUNTS = 3
_LONGEST_REASON = 20  # words
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
        known = [
            case
            for case in record.cases
            if case.after is None and case.slowdown is not None
        ]
        if not known:
            return f"{what}: no case could be judged.{more}"
        worst = max(known, key=lambda case: case.slowdown or 0.0)
        return (
            f"{what}: at worst {change(worst)} {record.worse} ({worst.name}); "
            f"{formats.percent(record.delta)} matters.{more}"
        )


def _counted(counts: Sequence[GateCase]) -> str:
    """Says what rose, beginning with what is judged and rose the most."""

    def is_shown_only(case: GateCase) -> bool:
        return case.verdict == judged_case.ROSE

    rose = [
        case
        for case in counts
        if case.verdict == Verdict.REGRESS.value or is_shown_only(case)
    ]
    # From 0 there is no share.
    rose.sort(key=lambda case: (is_shown_only(case), -(case.slowdown or math.inf)))
    said = "".join(
        f" {case.name} rose from {case.before:.15g} to {case.after:.15g}, exactly"
        f"{' (not judged)' * is_shown_only(case)}."
        for case in rose[:_MOST_COUNTS]
    )
    num_more = len(rose) - _MOST_COUNTS
    return said + f" So did {formats.count(num_more, 'more count')}." * (num_more > 0)


def change(case: GateCase) -> str:
    """Writes a slowdown with its interval, such as +3.0 % [+1.0, +5.0]; or a count."""
    if case.before is not None and case.after is not None:
        sides = case.before, case.after
        share = f"{judged_case.share_text(*sides)}, "
        is_share = case.before not in (0, case.after)
        return share * is_share + judged_case.exact_text(*sides)
    return formats.with_interval(
        case.slowdown, case.low, case.high, formats.signed_percent
    )


def of_view(view: View) -> GateView | None:
    """Returns what the gate of a study concluded; None of a study without one."""
    study = view.study
    is_verb = gate_lib.VERB in study.plan.command[:5]
    if not is_verb and not any(entry.spec.revision for entry in study.planned):
        return None
    record, why_none = None, "it has not concluded, or was stopped before"
    try:
        record = gate_lib.read_gate(view.store)
    except (errors.CorruptRecordError, errors.NewerSchemaError) as error:
        why_none = f"its record cannot be read: {error}"
    has_ended = all(e.state not in (MISSING, UNFINISHED) for e in study.planned)
    if record is not None or has_ended:
        record = derived(study) or record
    others = sorted(next_step.commits_of(study.other_revisions))
    base = ", ".join(others) or "its baseline"
    if record is not None and not others:
        base = record.baseline
    return GateView(
        record=record,
        why_none="" if record is not None else why_none,
        head=", ".join(sorted(next_step.commits_of(study.cases))) or "this tree",
        base=base,
        rule="" if record is None else _rule(study, record),
    )


def derived(study: Study) -> GateRecord | None:
    """Returns what the plan and the trials of a gate of two revisions say.

    None of other studies, and against a stored study, which is elsewhere.
    """
    found = gate_lib.of_plan(study)
    return None if found is None else judgement.record_of(found)


def _rule(study: Study, record: GateRecord) -> str:
    num_cases = sum(case.after is None for case in record.cases)
    design, rates = study.plan.measuring.gate, None
    if study.other_revisions and num_cases:
        has_looks = design is not None and design.looks
        number = None if has_looks else study.plan.repeats
        rates = paired_gate.of_gate(num_cases, number, record.alpha)
    return judgement.rule_text(
        record.worse, record.delta, record.alpha, rates, is_advice=record.is_advice
    )


class MeasuredRow(NamedTuple):
    """One backend in one scaling mode, at its most replicas."""

    backend: str  # Its name.
    mode: str  # Weak or strong.
    num_replicas: int  # As many as were measured, without those that have no core each.
    rate: str  # Throughput with its interval.
    efficiency: str  # Parallel efficiency with its interval, or why there is none.
    how_sure: str  # What the interval is over, or why there is none.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """The verdict of the first screen."""

    level: Level  # The worst of the marks.
    # What was found; of a study that scales, first how well the fastest backend does.
    sentences: tuple[str, ...]
    verdict: str = ""  # Of a gate: its first word.
    trust: str = ""  # ``Reliable``, or what limits it; empty if nothing was measured.
    rows: tuple[MeasuredRow, ...] = ()  # The table; empty if nothing was measured.
    following: str = ""  # What would settle the rest, with what is typed in backticks.
    # What numbers in brackets are, and of how many repetitions; empty where nothing was
    # measured.
    note: str = ""

    @property
    def next_parts(self) -> list[tuple[str, bool]]:
        """What would settle the rest, and whether each part is typed as a command."""
        parts = enumerate(self.following.split("`"))
        return [(part, bool(number % 2)) for number, part in parts if part]

    @property
    def next_step(self) -> str:
        """What would settle the rest, as plain text."""
        return self.following.replace("`", "")

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
    if not view.is_anything_measured:
        return Brief(
            level=Level.BAD,
            sentences=(_nothing_measured(view),),
            following=next_step.after_failures(view),
        )
    found = marks.of_view(view)
    level = marks.worst(found)
    points, compared = verdict.findings_of_leader(view)
    sentences = [
        trust.busy(view),
        trust.evidence_caveat(view.study),
        trust.why_implausible(view),
    ]
    note, following, trusted = _when(view), "", ""
    if points:
        sentences = [
            _scaling(points),
            _comparison(view, points, compared),
            next_step.loss_sentence(view, points),
            *sentences,
        ]
        note = f"{_note(view, points)}. {note}"
        following = next_step.choose(view, level, points, compared)
        trusted = _trust_words(found, level)
    else:
        alone = "Throughput was measured, of one case: there is no ratio."
        sentences.insert(0, alone)
        following = next_step.with_a_baseline(view)
    return Brief(
        level=level,
        sentences=tuple(text for text in sentences if text),
        trust=trusted,
        rows=tuple(_row(view, point) for point in view.most_replicas),
        following=following,
        note=note,
    )


def columns(view: View) -> tuple[str, ...]:
    """Returns the names of the columns of the table, with the unit of the rate."""
    return "backend", "mode", "replicas", view.rate_unit, "efficiency", "interval over"


def _row(view: View, point: Point) -> MeasuredRow:
    assert point.throughput is not None
    cells = verdict.cells(point)
    efficiency = cells["efficiency"]
    if point.efficiency is None:
        efficiency = "baseline" if point.is_baseline else point.missing_reason
    return MeasuredRow(
        backend=point.backend,
        mode=point.mode.value,
        num_replicas=point.num_replicas,
        rate=cells["rate"],
        efficiency=efficiency + ", oversubscribed" * point.is_oversubscribed,
        how_sure=_how_sure(view, point.efficiency or point.throughput),
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
    known = [p.efficiency for p in points if p.efficiency is not None]
    numbers = sorted({estimate.n for estimate in known})
    noun = view.repetition if numbers == [1] else view.repetitions
    number = f"n = {formats.span(numbers)} {noun}"
    if not any(estimate.has_interval for estimate in known):
        return f"{number}: no intervals"
    if not any(estimate.is_conclusive or estimate.is_disturbed for estimate in known):
        return f"In brackets: intervals of these processes only, {number}"
    more = " of fresh processes; ratios hold for this machine" * view.is_relay
    return f"In brackets: 95{formats.HARD_SPACE}% intervals, {number}{more}"


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


def _trust_words(found: Sequence[Mark], level: Level) -> str:
    if level is Level.OK:
        return "Reliable"
    words = "Not reliable" if level is Level.BAD else "Caution"
    names = ", ".join(mark.name.lower() for mark in found if mark.level is level)
    return f"{words}: {names}"


def _nothing_measured(view: View) -> str:
    planned = view.study.planned
    number = formats.count(len(planned), "planned trial")
    failed = [
        entry.reason.rstrip(".")
        for entry in planned
        if entry.state in {status.value for status in TrialStatus}
    ]
    if not failed:
        return f"Nothing was measured: none of {number} is ok."
    # The first of equally frequent ones, so that the page is the same in every run.
    ((reason, times_seen),) = collections.Counter(failed).most_common(1)
    words = reason.split()
    if len(words) > _LONGEST_REASON:
        reason = " ".join(words[:_LONGEST_REASON]) + "…"
    return f"Nothing was measured: {reason} ({times_seen} of {number})."


def _scaling(points: Sequence[Point]) -> str:
    parts: list[str] = []
    before = None
    for point in points:
        assert point.efficiency is not None
        part = formats.estimate(point.efficiency, formats.percent)
        part += " efficiency" * (not parts)
        if point.num_replicas != before:
            part += f" on {formats.count(point.num_replicas, 'replica')}"
        before = point.num_replicas
        parts.append(f"{part} in {point.mode.value}")
    beside = any(p.efficiency is not None and p.efficiency.is_disturbed for p in points)
    caveat = ", measured beside load: no evidence" * beside
    return f"{points[0].backend} keeps {' and '.join(parts)} scaling{caveat}."


def _comparison(
    view: View, points: Sequence[Point], compared: Sequence[Comparison]
) -> str:
    backend = points[0].backend
    others = [name for name in view.study.backends if name != backend]
    if not others:
        return f"Only {backend} was measured." * (view.study.program is None)
    same = [item for item in compared if points[0].mode in item.modes]
    if not same:
        what = others[0] if len(others) == 1 else f"{len(others)} other backends"
        return f"No comparison with {what}."
    if len(same) > 1:
        wins = [
            (item.first.spec.backend == backend) == (item.ratio.value > 1)
            for item in same
            if item.holds and item.ratio is not None
        ]
        among = verdict.among(same[0])
        if len(wins) == len(same) and all(wins):
            return f"{backend} is the fastest of {len(same) + 1} backends, {among}."
        return (
            f"Of {len(same)} others, {wins.count(True)} are slower,"
            f" {wins.count(False)} faster, {len(same) - len(wins)} inconclusive,"
            f" {among}."
        )
    (item,) = same
    ratio, other = item.ratio, item.second
    assert ratio is not None
    if item.first.spec.backend != backend:
        ratio, other = _inverse(ratio), item.first
    figures = formats.estimate(ratio, formats.times)
    # The ratio of one mode, where efficiencies of two are named.
    mode = f" in {points[0].mode.value} scaling" if len(points) > 1 else ""
    if not item.holds:
        return f"{backend} against {other.spec.backend}{mode}: {figures}, inconclusive."
    return f"{backend} is {figures} as fast as {other.spec.backend}{mode}."


def _inverse(ratio: Estimate) -> Estimate:
    low, high = ratio.low, ratio.high
    is_known = low is not None and high is not None and low > 0
    return dataclasses.replace(
        ratio,
        value=1 / ratio.value,
        low=1 / high if is_known and high is not None else None,
        high=1 / low if is_known and low is not None else None,
    )
