"""A gate in words: as text, Markdown, JSON, JUnit XML, notes for GitHub, and its page.

``gate_record`` words a gate once, in the record that ``gate.json`` holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from reports.words import formats
from reports.words.caveats import Level, blocks_text, load_text
from reports.words.names import commits_text
from results import errors
from results.judging import gate as gate_lib
from results.judging import gate_metrics
from results.records import measuring
from results.statistics import group_sequential
from results.statistics.group_sequential import Verdict
from results.study.cases import MISSING, UNFINISHED

if TYPE_CHECKING:
    from reports.view import View
    from results.judging.gate import Gate
    from results.records.models import GateCase, GateRecord
    from results.statistics.estimates import Estimate
    from results.statistics.group_sequential import Design
    from results.study.cases import Study


EXACT: Final = (
    "counts are exact: all runs of a side have the same number, so there is no spread"
    " that an interval could show; any rise is a regression"
)
WEAKER: Final = (
    "a weaker comparison: the two were not measured in the same rounds, so nothing that"
    " happened to the machine cancels, and what varies between days is in no interval"
)
WEAKER_QUALITY: Final = (
    "a weaker comparison: the runs of the two studies do not share their seeds"
)
QUALITY: Final = (
    "the median over seeds (n) of how much worse quality runs end, relative to the"
    " baseline's median; and whether more of them fail"
)
EFFECTS: Final = (0.0, 0.02, 0.05, 0.08, 0.10)
"""True slowdowns in the tables of what a gate finds, beside delta."""


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    names = "value", "low", "high", "n", "confidence", "method"
    return {name: getattr(estimate, name) for name in names}


def _change(slowdown: Estimate) -> str:
    """Writes a ratio of costs as a change with its interval: +3.0 % [+1.0, +5.0]."""
    return formats.estimate(slowdown, lambda ratio: formats.signed_percent(ratio - 1))


def _rule(gate: Gate) -> str:
    """Says what matters, and how often it passes: of such a gate, simulated."""
    rule = f"{gate.metric.worse} by {gate.delta:.1%} matters"
    rates = None if gate.paired is None else gate.paired.rates
    if gate.is_advice:  # what varies between days is in no error rate
        return rule
    if rates is None:
        return f"{rule}, and passes with probability {gate.alpha:.1%} at most"
    return (
        f"{rule}, and passes with probability {rates.passes:.1%} at most"
        f" ({rates.passes_dependent:.1%} where runs depend on each other); equal"
        f" programs regress with {rates.regresses:.1%} at most"
        f" ({rates.regresses_dependent:.1%})"
    )


def headline(gate: Gate) -> str:
    counts_of = dict.fromkeys(case.name.rpartition(": ")[2] for case in gate.counts)
    what = f"{', '.join([gate.metric.name, *counts_of])} against {gate.baseline}"
    if gate.equal_code:
        digests = ", ".join(gate.equal_code)
        return (
            f"PASS: {what}: nothing was measured, since the code of both sides is the"
            f" same (digest {digests}); --measure-equal measures it"
        )
    if gate.why_unfit and not gate.has_risen:
        return f"UNFIT: {what}: no verdict, because {gate.why_unfit}"
    if not gate.num_ok and not gate.has_risen:
        return f"NO VERDICT: {what}: nothing was measured"
    by_verdict = formats.grouped((case.verdict, case) for case in gate.case_records)
    counts = ", ".join(f"{len(cases)} {word}" for word, cases in by_verdict.items())
    rule = _rule(gate)
    if gate.why_unfit:
        rule += f"; the machine gave no verdict: {gate.why_unfit}"
    advice = "ADVICE, NO VERDICT: " * gate.is_advice
    return f"{advice}{gate.verdict_word.upper()}: {what}: {counts} ({rule})"


def gate_record(gate: Gate) -> GateRecord:
    """Returns a gate in words: what ``gate.json`` holds, and every format writes."""
    return gate.record(headline=headline(gate), notes=_notes(gate))


def _notes(gate: Gate) -> Iterator[str]:
    """Yields what a reader of the verdict has to know, beside cases and failures."""
    if gate.metric.is_quality:
        yield QUALITY
    if gate.is_weaker:
        yield WEAKER_QUALITY if gate.metric.is_quality else WEAKER
    if gate.differences:
        listed = "; ".join(gate.differences)
        yield f"not comparable, shown only and never a pass: {listed}"
    ratio = (
        None
        if gate.aa_control is None
        else gate.aa_control.strict or gate.aa_control.ratio
    )
    if ratio is not None and ratio.has_interval:
        yield (
            f"A/A control (one case measured twice): {ratio.value:.3f}"
            f" [{ratio.low:.3f}, {ratio.high:.3f}] ({ratio.confidence:.0%}), must"
            " include 1"
        )
    yield from _notes_of_counts(gate)
    yield from _notes_of_looks(gate)
    if gate.blocks.num_blocks:
        yield f"blocks: {blocks_text(gate.blocks)}"
    load = gate.load
    if load is not None and (load.num_busy or load.num_unknown):
        why = ", and what is unknown does not pass" * bool(load.num_unknown)
        yield f"caution: {load_text(load)}{why}"


def _notes_of_counts(gate: Gate) -> Iterator[str]:
    """Says what the counts of a gate are, and which of them are not judged."""
    if any(case.count is not None for case in gate.counts):
        yield EXACT
    counts = [case.count for case in gate.noted if case.count is not None]
    differ = dict.fromkeys(count.name for count in counts if not count.is_equal)
    if differ:
        options = " ".join(f"--count {name}" for name in differ)
        yield (
            "what was counted in a step and rose or fell is exact, shown, and not"
            f" judged; {options}: a rise is a regression"
        )
    equal = dict.fromkeys(count.name for count in counts if count.name not in differ)
    if equal:
        listed = ", ".join(map(measuring.step_count_words, equal))
        n = min(count.n for count in counts)
        yield (
            f"counted in a step of each case, and equal on both sides: {listed} (n ="
            f" {n} runs of a side or more)"
        )
    unknown = (case for case in gate.noted if case.count is None)
    reasons = formats.grouped((case.reason, case.name) for case in unknown)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" * (len(names) > 1)
        yield f"{names[0]}{more}: not compared, since {reason}"


def _notes_of_looks(gate: Gate) -> Iterator[str]:
    """Says when a gate of two revisions ended, and what it saw besides its cases."""
    paired, worse = gate.paired, gate.metric.worse
    if paired is None:
        return
    singles = paired.singles
    if paired.num_repetitions < paired.fewest:
        yield (
            f"{paired.num_repetitions} runs cannot pass, since they may miss"
            f" what slows one in five; give --repeats {paired.fewest}, or more"
            " --time-budget"
        )
    yield (
        f"intervals are {paired.widening:.2f} times as wide as Student's, for"
        " runs that may depend on each other; they hold at least what they state"
    )
    if len(paired.looks) > 1 or paired.most > paired.looks[-1]:
        end = "not decided"
        if paired.decided_after is not None:
            end = f"decided after {paired.decided_after}"
        yield (
            f"looked after {', '.join(map(str, paired.looks))} runs (at most"
            f" {paired.most}): {end}; each interval is that of the interim analysis"
            " which decided its case"
        )
    if gate.sustained is not None:
        yield (
            f"a check of the blocks: steps in a row take"
            f" {_change(gate.sustained)} longer (n = {gate.sustained.n}), over all"
            " cases of both sides"
        )
    # Where a case is slower as a whole, its processes stand out for that reason.
    is_slower = any(case.verdict is Verdict.REGRESS for case in gate.cases)
    if singles.holds and not is_slower:
        least = formats.signed_percent(math.expm1(singles.threshold))
        yield (
            f"single processes are {worse}: in {singles.num_slower} runs those of this"
            f" tree stand out by more than {least}, and in {singles.num_faster} those"
            f" of the baseline (sign test, p = {singles.p_value:.2g})"
        )
    for case in gate.cases:
        for name, other in case.others.items():
            yield (
                f"{case.name}: {name}: {other.verdict.value}: {worse} by"
                f" {_change(other.slowdown)}; {other.delta:.0%} matters"
            )


def change(case: GateCase) -> str:
    if case.before is not None and case.after is not None:
        sides = case.before, case.after
        share = f"{gate_metrics.share_text(*sides)}, "
        is_share = case.before not in (0, case.after)
        return share * is_share + gate_metrics.exact_text(*sides)
    return formats.with_interval(
        case.slowdown, case.low, case.high, formats.signed_percent
    )


def _table(record: GateRecord) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    confidence = f"interval, at least {1 - 2 * record.alpha:.0%}"
    columns = "case", f"{record.worse} by, {confidence}", "n", "verdict"
    return columns, [
        (case.name, change(case), str(case.n or formats.ABSENT), case.verdict)
        for case in record.cases
    ]


def _remarks(record: GateRecord) -> Iterator[str]:
    yield from (f"{case.name}: {case.reason}" for case in record.cases if case.reason)
    yield from record.notes
    yield from (f"failed: {failure}" for failure in record.failures)


def gate_text(record: GateRecord) -> str:
    table = formats.aligned(*_table(record))
    return "\n".join([*table, *_remarks(record), record.headline])


def gate_markdown(record: GateRecord) -> str:
    head = f"**{formats.escaped(record.headline)}**"
    remarks = [f"- {formats.escaped(remark)}" for remark in _remarks(record)]
    table = formats.markdown_table(*_table(record))
    return "\n".join([head, "", *table, "", *remarks])


def _sentence(record: GateRecord, case: GateCase) -> str:
    by = "" if case.after is not None else f"{record.worse} by "
    return f"{case.name}: {case.verdict}: {by}{change(case)}, n {case.n}"


_FINE: Final = ("pass", "improve", gate_metrics.ROSE, gate_metrics.FELL)


def gate_github(record: GateRecord) -> str:
    """Writes annotations of GitHub's workflow commands."""
    messages = [
        (case.verdict, f"{record.metric}: {_sentence(record, case)}")
        for case in record.cases
    ]
    messages += [("", failure) for failure in record.failures]
    is_open = record.exit_code != 1 and (record.failures or record.is_advice)
    messages.append(("" if is_open else record.verdict, record.headline))
    lines = []
    for verdict, text in messages:
        level = "notice" if verdict in _FINE else "warning"
        level = "error" if verdict == Verdict.REGRESS.value else level
        escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        lines.append(f"::{level} title=performance gate::{escaped}")
    return "\n".join(lines)


def gate_junit(record: GateRecord) -> str:
    """Writes JUnit XML with a failure if and only if the exit code is 1."""
    suite = ET.Element("testsuite", name=f"gate {record.metric}")

    def add(name: str, outcome: str, text: str, *, is_exact: bool = False) -> None:
        element = ET.SubElement(
            suite, "testcase", classname=f"gate.{record.metric}", name=name
        )
        if outcome:
            ET.SubElement(element, outcome, message=text)
        elif is_exact:  # what was counted is said of a case that passes too
            ET.SubElement(element, "system-out").text = text

    for case in record.cases:
        is_exact = case.after is not None
        is_open = case.verdict == gate_lib.NO_VERDICT
        said = "" if is_open else _sentence(record, case)
        text = "; ".join(part for part in (said, case.reason) if part)
        outcome = _outcome(record, case, is_exact=is_exact)
        add(case.name, outcome, text, is_exact=is_exact)
    of_codes = {0: "", 1: "failure", 3: "skipped"}
    add("all", of_codes.get(record.exit_code, "error"), record.headline)
    remarks = [*_remarks(record)]
    ET.SubElement(suite, "system-out").text = "\n".join(remarks)
    suite.set("tests", str(len(record.cases) + 1))
    for total, outcome in (
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        suite.set(total, str(len(suite.findall(f"testcase/{outcome}"))))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _outcome(record: GateRecord, case: GateCase, *, is_exact: bool) -> str:
    """Returns the element of JUnit for a case; empty for a test that passes."""
    # Of a disturbed machine, a count that rose is the only regression.
    is_disturbed = bool(record.failures or record.unfit)
    has_risen = is_exact and record.exit_code == 1
    if record.is_advice or (is_disturbed and not has_risen):
        return "skipped"
    if case.verdict == Verdict.REGRESS.value:
        return "failure"
    return "" if case.verdict in _FINE else "skipped"


def gate_json(record: GateRecord) -> str:
    return record.model_dump_json(indent=2)


GATE_FORMATS: Final[dict[str, Callable[[GateRecord], str]]] = {
    "text": gate_text,
    "junit": gate_junit,
    "github": gate_github,
    "markdown": gate_markdown,
    "json": gate_json,
}
"""What writes a gate, by the name of a format on the command line."""


_MOST_COUNTS: Final = 3
_LEVELS: Final = {"pass": Level.OK, "improve": Level.OK, "regress": Level.BAD}
_AFTER: Final = {
    "pass": "nothing: the change does not slow this down",
    "improve": "nothing: the change makes this faster",
    "regress": "mend the change, or find its commit with `git bisect run`",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateView:
    """The study of a gate."""

    # What it concluded; None where it has not, or that cannot be read.
    record: GateRecord | None
    why_none: str  # Why there is no record; empty if there is.
    head: str  # Commits of the tree that was judged.
    # Commits of the tree that it was compared with; of a stored study its name.
    base: str

    @property
    def verdict(self) -> str:
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
    def following(self) -> str:
        word = (
            None if self.level is Level.CAUTION else self.record and self.record.verdict
        )
        return _AFTER.get(word or "", "repeat the gate with more --time-budget")

    @property
    def sentence(self) -> str:
        record = self.record
        if record is None:
            return f"The gate on {self.head} gave no verdict: {self.why_none}."
        counts = [case for case in record.cases if case.after is not None]
        more = _counted(counts)
        if record.unfit:
            return f"No verdict on {record.metric}: {record.unfit}.{more}"
        known = [
            case
            for case in record.cases
            if case.after is None and case.slowdown is not None
        ]
        if not known:
            what = f"{record.metric} of {self.head} against {self.base}"
            return f"{what}: no case could be judged.{more}"
        worst = max(known, key=lambda case: case.slowdown or 0.0)
        return (
            f"{self.head} is at worst {change(worst)} {record.worse} than {self.base}"
            f" ({record.metric} of {worst.name}); the regression threshold is"
            f" {formats.percent(record.delta)}.{more}"
        )


def _counted(counts: Sequence[GateCase]) -> str:
    """Says what rose, beginning with what is judged and rose the most."""

    def is_shown_only(case: GateCase) -> bool:
        return case.verdict == gate_metrics.ROSE

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


def gate_view(view: View) -> GateView | None:
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
    base = commits_text(study.other_revisions)
    return GateView(
        record=record,
        why_none="" if record is not None else why_none,
        head=commits_text(study.cases) or "this tree",
        base=base or ("its baseline" if record is None else record.baseline),
    )


def derived(study: Study) -> GateRecord | None:
    """Returns what the trials of a gate of two revisions say; None of other studies."""
    gate = gate_lib.planned_gate(study)
    return None if gate is None else gate_record(gate)


def power_text(
    spread: float,
    rule: Design,
    *,
    source: str,
    num_cases: int,
    minutes_per_repetition: float,
) -> str:
    """Says what a gate finds at a standard deviation of the log ratio over runs."""
    effects, last = sorted({*EFFECTS, rule.delta}), rule.looks[-1]
    share, minutes = group_sequential.DEFAULT_POWER, last * minutes_per_repetition
    when = f"one interim analysis after {last} runs"
    if len(rule.looks) > 1:
        when = f"looks after {', '.join(map(str, rule.looks))} runs"
    lines = [
        f"spread between runs: {spread:.2%} ({source})",
        (
            f"a slowdown of {rule.delta:.1%} of one case matters, and passes with"
            f" probability {rule.alpha:.1%} at most"
        ),
        "",
        (
            f"share of verdicts of gates of {formats.count(num_cases, 'case')},"
            f" simulated {group_sequential.NUM_GATES} times; {when}, at most"
            f" {minutes:.1f} min:"
        ),
        "true change   pass  regress  inconclusive         runs",
    ]
    lines += [
        f"{point.effect:+10.1%}  {point.passes:5.3f}  {point.regresses:7.3f}"
        f"  {point.inconclusive:12.3f}  {point.repetitions:11.1f}"
        for point in group_sequential.operating_points(
            spread, effects, rule, num_cases=num_cases
        )
    ]
    lines += [
        "",
        (f"for the correct verdict in {share:.0%} of gates with one look (--repeats):"),
        "true change  verdict         runs   minutes",
    ]
    for need in group_sequential.needed(
        effects,
        spread=spread,
        minutes_per_repetition=minutes_per_repetition,
        num_cases=num_cases,
        delta=rule.delta,
        alpha=rule.alpha,
    ):
        number, takes = f"> {group_sequential.MOST_REPETITIONS}", "-"
        if need.num_repetitions is not None and need.minutes is not None:
            number, takes = str(need.num_repetitions), f"{need.minutes:.1f}"
        word = need.verdict.value
        lines.append(f"{need.effect:+10.1%}   {word:7}  {number:>11}  {takes:>8}")
    half_width = math.expm1(group_sequential.median_half_width(spread, last))
    least = group_sequential.smallest_effect_found(spread, rule, num_cases=num_cases)
    smallest = "none" if least is None else f"+{least:.1%}"
    lines += [
        "",
        (
            f"in {minutes:.1f} min ({last} runs): half"
            f" of all 95 % intervals are within +-{half_width:.1%}; the smallest"
            f" slowdown found in {share:.0%} of gates: {smallest}"
        ),
    ]
    return "\n".join(lines)
