"""A gate as text, Markdown, JSON, JUnit XML, or notes for GitHub."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from reports.words import formats, ratio_table
from reports.words.trust import load_text
from results.judging import power
from results.judging.judged_case import exact_text, share_text
from results.records import measuring
from results.statistics.group_sequential import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from results.judging.gate import Gate
    from results.judging.judged_case import Count, JudgedCase
    from results.judging.paired_gate import Rates
    from results.judging.power import Need, OperatingPoint
    from results.records.models import GateRecord
    from results.statistics.estimates import Estimate
    from results.statistics.group_sequential import Design


EXACT: Final = (
    "counts are exact: all runs of a side have the same number, so there is no spread"
    " that an interval could show; any rise is a regression"
)


def count_cells(count: Count) -> tuple[str, str, str, str]:
    """Returns the cells of a row: change, both sides, n, and what it means."""
    sides = count.before, count.after
    return share_text(*sides), exact_text(*sides), str(count.n), count.word


def notes_of_counts(gate: Gate) -> Iterator[str]:
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
    reasons: dict[str, list[str]] = {}
    for case in gate.noted:
        if case.count is None:
            reasons.setdefault(case.reason, []).append(case.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" * (len(names) > 1)
        yield f"{names[0]}{more}: not compared, since {reason}"


WEAKER_QUALITY: Final = (
    "a weaker comparison: the runs of the two studies do not share their seeds"
)
QUALITY: Final = (
    "the median over seeds (n) of how much worse quality runs end, relative to the"
    " baseline's median; and whether more of them fail"
)
_EPSILON = 5e-5  # below the last digit that is shown


def change_text(ratio: float) -> str:
    """Writes a ratio of costs as a change: 1.03 is ``+3.0 %``."""
    change = 100 * (ratio - 1)
    return f"{0.0 if abs(change) < 100 * _EPSILON else change:+.1f} %"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"[{change_text(estimate.low)}, {change_text(estimate.high)}]"


def headline(gate: Gate) -> str:
    """Returns the verdict of a gate in one sentence."""
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
    verdict = gate.verdict
    name = "no verdict" if verdict is None else verdict.value
    counts = ", ".join(
        f"{sum(_verdict_of(case) == value for case in gate.all_cases)} {value}"
        for value in dict.fromkeys(_verdict_of(case) for case in gate.all_cases)
    )
    rates = None if gate.paired is None else gate.paired.rates
    rule = rule_text(
        gate.metric.worse, gate.delta, gate.alpha, rates, is_advice=gate.is_advice
    )
    if gate.why_unfit:
        rule += f"; the machine gave no verdict: {gate.why_unfit}"
    advice = "ADVICE, NO VERDICT: " * gate.is_advice
    return f"{advice}{name.upper()}: {what}: {counts} ({rule})"


def rule_text(
    worse: str, delta: float, alpha: float, rates: Rates | None, *, is_advice: bool
) -> str:
    """Says what matters, and how often it passes: of such a gate, simulated."""
    rule = f"{worse} by {delta:.1%} matters"
    if is_advice:  # what varies between days is in no error rate
        return rule
    if rates is None:
        return f"{rule}, and passes with probability {alpha:.1%} at most"
    return (
        f"{rule}, and passes with probability {rates.passes:.1%} at most"
        f" ({rates.passes_dependent:.1%} where runs depend on each other); equal"
        f" programs regress with {rates.regresses:.1%} at most"
        f" ({rates.regresses_dependent:.1%})"
    )


def _verdict_of(case: JudgedCase) -> str:
    if case.count is not None:
        return case.count.word
    return "no verdict" if case.verdict is None else case.verdict.value


def record_of(gate: Gate) -> GateRecord:
    """Returns what a gate concluded, as a record."""
    return gate.record(headline=headline(gate), notes=notes_of(gate))


def notes_of(gate: Gate) -> Iterator[str]:
    """Says what else a gate saw, of what it counts and of how it ended."""
    yield from notes_of_counts(gate)
    yield from _notes_of_looks(gate)


def _notes_of_looks(gate: Gate) -> Iterator[str]:
    """Says when a gate of two revisions ended, and what it saw besides its cases."""
    paired = gate.paired
    if paired is None:
        return
    if paired.num_generations < paired.fewest:
        yield (
            f"{paired.num_generations} runs cannot pass, since they may miss"
            f" what slows one in five; give --repeats {paired.fewest}, or more"
            " --time-budget"
        )
    yield (
        f"intervals are {paired.widening:.2f} times as wide as Student's, for"
        " runs that may depend on each other; they hold at least what they state"
    )
    if len(paired.looks) > 1 or paired.most > paired.looks[-1]:
        listed = ", ".join(map(str, paired.looks))
        end = (
            f"decided after {paired.decided_after}"
            if paired.decided_after is not None
            else "not decided"
        )
        yield (
            f"looked after {listed} runs (at most {paired.most}): {end}; each"
            " interval is that of the interim analysis which decided its case"
        )
    if gate.sustained is not None:
        yield (
            f"a check of the blocks: steps in a row take"
            f" {change_text(gate.sustained.value)} {_interval(gate.sustained)} longer"
            f" (n = {gate.sustained.n}), over all cases of both sides"
        )
    # Where a case is slower as a whole, its processes stand out for that reason.
    is_slower = any(case.verdict is Verdict.REGRESS for case in gate.cases)
    if paired.has_slow_processes and not is_slower:
        yield (
            f"single processes are {gate.metric.worse}: in {paired.num_slower}"
            " runs those of this tree stand out by more than"
            f" {change_text(paired.stands_out)}, and in {paired.num_faster} those of"
            f" the baseline (sign test, p = {paired.p_value:.2g})"
        )
    for case in gate.cases:
        for name, other in case.others.items():
            yield (
                f"{case.name}: {name}: {other.verdict.value}: {gate.metric.worse} by"
                f" {change_text(other.slowdown.value)} {_interval(other.slowdown)};"
                f" {other.delta:.0%} matters"
            )


def _notes_of_load(gate: Gate) -> Iterator[str]:
    """Says where others used the machine, or nobody knows."""
    found = gate.load
    if found is None or not (found.num_busy or found.num_unknown):
        return
    why = ", and what is unknown does not pass" * bool(found.num_unknown)
    yield f"caution: {load_text(found)}{why}"


def _notes(gate: Gate) -> list[str]:
    notes = []
    if gate.metric.is_quality:
        notes.append(QUALITY)
    if gate.is_weaker:
        notes.append(WEAKER_QUALITY if gate.metric.is_quality else ratio_table.WEAKER)
    if gate.differences:
        listed = "; ".join(gate.differences)
        notes.append(f"not comparable, shown only and never a pass: {listed}")
    notes += [f"{case.name}: {case.reason}" for case in gate.all_cases if case.reason]
    if gate.twin is not None:
        ratio = gate.twin.strict or gate.twin.ratio
        if ratio.low is not None and ratio.high is not None:
            notes.append(
                f"A/A control (one case measured twice): {ratio.value:.3f}"
                f" [{ratio.low:.3f}, {ratio.high:.3f}] ({ratio.confidence:.0%}), must"
                " include 1"
            )
    notes += notes_of(gate)
    if gate.turns.num_turns:
        notes.append(
            f"discarded blocks: {gate.turns.num_void} of {gate.turns.num_turns}"
        )
    notes += _notes_of_load(gate)
    notes += [f"failed: {failure}" for failure in gate.failures]
    return notes


def _rows(gate: Gate) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for case in gate.all_cases:
        if case.count is not None:
            rows.append((case.name, *count_cells(case.count)))
            continue
        if case.judgement is None:
            rows.append((case.name, "-", "-", "-", "no verdict"))
            continue
        slowdown = case.judgement.slowdown
        rows.append(
            (
                case.name,
                change_text(slowdown.value),
                _interval(slowdown),
                str(slowdown.n),
                _verdict_of(case),
            )
        )
    return rows


def _columns(gate: Gate) -> tuple[str, ...]:
    confidence = f"interval, at least {1 - 2 * gate.alpha:.0%}"
    return ("case", f"{gate.metric.worse} by", confidence, "n", "verdict")


def gate_text(gate: Gate) -> str:
    """Writes a gate for a terminal."""
    table = ratio_table.aligned(_columns(gate), _rows(gate))
    return "\n".join([*table, *_notes(gate), headline(gate)])


def gate_markdown(gate: Gate) -> str:
    """Writes a gate for a pull request."""
    notes = [f"- {formats.escaped(note)}" for note in _notes(gate)]
    table = formats.markdown_table(_columns(gate), _rows(gate))
    return "\n".join([f"**{formats.escaped(headline(gate))}**", "", *table, "", *notes])


def gate_github(gate: Gate) -> str:
    """Writes a gate as annotations of GitHub's workflow commands."""
    lines = []
    for row, case in zip(_rows(gate), gate.all_cases, strict=True):
        level = _level(case.verdict)
        lines.append(
            _annotation(level, f"{gate.metric.name}: {_sentence(gate, row, case)}")
        )
    lines += [_annotation("warning", note) for note in gate.failures]
    is_decided = gate.has_risen or not (gate.failures or gate.is_advice)
    verdict = gate.verdict if is_decided else None
    lines.append(_annotation(_level(verdict), headline(gate)))
    return "\n".join(lines)


def _sentence(gate: Gate, row: Sequence[str], case: JudgedCase) -> str:
    name, change, interval, number, verdict = row
    if case.count is not None:
        return f"{name}: {verdict}: {interval} ({change}), n {number}"
    return f"{name}: {verdict}: {gate.metric.worse} by {change} {interval}, n {number}"


def _level(verdict: Verdict | None) -> str:
    if verdict is Verdict.REGRESS:
        return "error"
    return "notice" if verdict is not None and verdict.is_pass else "warning"


def _annotation(level: str, text: str) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title=performance gate::{escaped}"


def gate_junit(gate: Gate) -> str:
    """Writes a gate as JUnit XML, in agreement with its exit code.

    A regression is a failure, what could not be measured an error, and a verdict that
    is inconclusive is skipped, with its reason. The suite has a failure if and only if
    the exit code is 1.
    """
    suite = ET.Element("testsuite", name=f"gate {gate.metric.name}")
    counts = {"failure": 0, "error": 0, "skipped": 0}

    def add(name: str, outcome: str, text: str, *, is_exact: bool = False) -> None:
        element = ET.SubElement(
            suite, "testcase", classname=f"gate.{gate.metric.name}", name=name
        )
        if outcome:
            counts[outcome] += 1
            ET.SubElement(element, outcome, message=text)
        elif is_exact:  # what was counted is said of a case that passes too
            ET.SubElement(element, "system-out").text = text

    for row, case in zip(_rows(gate), gate.all_cases, strict=True):
        said = "" if case.verdict is None else _sentence(gate, row, case)
        text = "; ".join(part for part in (said, case.reason) if part)
        is_exact = case.count is not None
        outcome = _outcome(gate, case.verdict, is_exact=is_exact)
        add(case.name, outcome, text, is_exact=is_exact)
    is_measured = gate.has_risen or not (gate.failures or gate.why_unfit)
    whole = _outcome(gate, gate.verdict, is_exact=gate.has_risen)
    if gate.verdict is None or not is_measured:
        whole = "error"
    add("all", whole, headline(gate))
    ET.SubElement(suite, "system-out").text = "\n".join(_notes(gate))
    suite.set("tests", str(len(gate.all_cases) + 1))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _outcome(gate: Gate, verdict: Verdict | None, *, is_exact: bool) -> str:
    """Returns the element of JUnit for a verdict; empty for a test that passes."""
    is_disturbed = bool(gate.failures or gate.why_unfit)
    if gate.is_advice or (is_disturbed and not (is_exact and gate.has_risen)):
        return "skipped"
    if verdict is Verdict.REGRESS:
        return "failure"
    return "" if verdict is not None and verdict.is_pass else "skipped"


def gate_json(gate: Gate) -> str:
    """Writes a gate as data."""
    twin = gate.twin
    return json.dumps(
        {
            "verdict": None if gate.verdict is None else gate.verdict.value,
            "unfit": gate.why_unfit,
            "metric": gate.metric.name,
            "baseline": gate.baseline,
            "delta": gate.delta,
            "alpha": gate.alpha,
            "is_weaker": gate.is_weaker,
            "is_advice": gate.is_advice,
            "equal_code": list(gate.equal_code),
            "looks": None if gate.paired is None else dataclasses.asdict(gate.paired),
            "differences": list(gate.differences),
            "cases": [_case_data(case) for case in gate.all_cases],
            "twin": None if twin is None else ratio_table.estimate_data(twin.ratio),
            "num_turns": gate.turns.num_turns,
            "num_void_turns": gate.turns.num_void,
            "failures": list(gate.failures),
        },
        indent=2,
    )


def _case_data(case: JudgedCase) -> dict[str, Any]:
    judgement = case.judgement
    if case.case is not None:
        what: dict[str, Any] = {
            "backend": case.case.spec.backend,
            "num_replicas": case.case.spec.num_replicas,
            "modes": [mode.value for mode in case.case.modes],
        }
    else:
        what = {"benchmark": case.name}
    return {
        **what,
        "verdict": None if case.verdict is None else case.verdict.value,
        "slowdown": None
        if judgement is None
        else ratio_table.estimate_data(judgement.slowdown),
        "others": {
            name: {
                "verdict": of.verdict.value,
                "delta": of.delta,
                "slowdown": ratio_table.estimate_data(of.slowdown),
            }
            for name, of in case.others.items()
        },
        "count": None if case.count is None else dataclasses.asdict(case.count),
        "reason": case.reason,
    }


EFFECTS = (0.0, 0.02, 0.05, 0.08, 0.10)
"""True slowdowns in the tables, beside delta."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """What a gate finds at a given spread."""

    spread: float  # Standard deviation of the log ratio over generations.
    source: str  # Where it is from, in words.
    num_cases: int  # Cases of the gate; the change is in one of them.
    looks: tuple[int, ...]  # After how many generations it looks.
    num_generations: int  # At its last look.
    minutes_per_generation: float  # Start-up included.
    delta: float  # The slowdown that matters, as a ratio.
    alpha: float  # The accepted probability of an error of either kind.
    points: tuple[OperatingPoint, ...]  # The share of each verdict, by true slowdown.
    # What the correct verdict takes with one look, by true slowdown.
    needs: tuple[Need, ...]
    half_width: float  # Median half width of a 95 % interval, as a ratio.
    # The smallest slowdown that is found in 9 of 10 gates, as a ratio; None if none is.
    smallest: float | None
    num_gates: int = power.NUM_GATES  # Simulated gates behind each share.


def power_text(found: Power) -> str:
    """Writes it for a terminal."""
    minutes = found.num_generations * found.minutes_per_generation
    cases = formats.count(found.num_cases, "case")
    when = f"one interim analysis after {found.num_generations} runs"
    if len(found.looks) > 1:
        when = f"looks after {', '.join(map(str, found.looks))} runs"
    lines = [
        f"spread between runs: {found.spread:.2%} ({found.source})",
        (
            f"a slowdown of {found.delta:.1%} of one case matters, and passes with"
            f" probability {found.alpha:.1%} at most"
        ),
        "",
        (
            f"share of verdicts of gates of {cases}, simulated {found.num_gates} times;"
            f" {when}, at most {minutes:.1f} min:"
        ),
        "true change   pass  regress  inconclusive         runs",
    ]
    lines += [
        f"{point.effect:+10.1%}  {point.passes:5.3f}  {point.regresses:7.3f}"
        f"  {point.inconclusive:12.3f}  {point.generations:11.1f}"
        for point in found.points
    ]
    lines += [
        "",
        (
            f"for the correct verdict in {power.DEFAULT_POWER:.0%} of gates with one"
            " look (--repeats):"
        ),
        "true change  verdict         runs   minutes",
    ]
    lines += [_need_line(need) for need in found.needs]
    smallest = "none"
    if found.smallest is not None:
        smallest = f"+{found.smallest:.1%}"
    lines += [
        "",
        (
            f"in {minutes:.1f} min ({found.num_generations} runs): half"
            f" of all 95 % intervals are within +-{found.half_width:.1%}; the smallest"
            f" slowdown found in {power.DEFAULT_POWER:.0%} of gates: {smallest}"
        ),
    ]
    return "\n".join(lines)


def _need_line(need: Need) -> str:
    number = f"> {power.MOST_GENERATIONS}"
    minutes = "-"
    if need.num_generations is not None and need.minutes is not None:
        number, minutes = str(need.num_generations), f"{need.minutes:.1f}"
    return f"{need.effect:+10.1%}   {need.verdict.value:7}  {number:>11}  {minutes:>8}"


def calculate(
    spread: float,
    rule: Design,
    *,
    source: str,
    num_cases: int,
    minutes_per_generation: float,
    effects: Sequence[float] = EFFECTS,
) -> Power:
    """Calculates both tables."""
    shown = sorted({*effects, rule.delta})
    last = rule.looks[-1]
    return Power(
        spread=spread,
        source=source,
        num_cases=num_cases,
        looks=rule.looks,
        num_generations=last,
        minutes_per_generation=minutes_per_generation,
        delta=rule.delta,
        alpha=rule.alpha,
        points=power.operating_points(spread, shown, rule, num_cases=num_cases),
        needs=power.needed(
            shown,
            spread=spread,
            minutes_per_generation=minutes_per_generation,
            num_cases=num_cases,
            delta=rule.delta,
            alpha=rule.alpha,
        ),
        half_width=math.expm1(power.median_half_width(spread, last)),
        smallest=power.smallest_effect_found(spread, rule, num_cases=num_cases),
    )
