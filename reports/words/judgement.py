"""A gate as text, Markdown, JSON, JUnit XML, or notes for GitHub."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from reports.words import formats
from reports.words.trust import load_text
from results.judging import gate as gate_lib
from results.judging import power
from results.judging.judged_case import exact_text, share_text
from results.records import measuring
from results.statistics.group_sequential import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from results.judging.gate import Gate
    from results.judging.judged_case import JudgedCase
    from results.judging.paired_gate import Rates
    from results.records.models import GateRecord
    from results.statistics.estimates import Estimate
    from results.statistics.group_sequential import Design


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
_EPSILON = 5e-5  # below the last digit that is shown


def change_text(ratio: float) -> str:
    """Writes a ratio of costs as a change: 1.03 is ``+3.0 %``."""
    change = 100 * (ratio - 1)
    return f"{0.0 if abs(change) < 100 * _EPSILON else change:+.1f} %"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"[{change_text(estimate.low)}, {change_text(estimate.high)}]"


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """Returns an estimate as data."""
    names = "value", "low", "high", "n", "confidence", "method"
    return {name: getattr(estimate, name) for name in names}


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
    found = formats.grouped((_word(case), case) for case in gate.all_cases)
    counts = ", ".join(f"{len(cases)} {word}" for word, cases in found.items())
    rates = None if gate.paired is None else gate.paired.rates
    rule = rule_text(
        gate.metric.worse, gate.delta, gate.alpha, rates, is_advice=gate.is_advice
    )
    if gate.why_unfit:
        rule += f"; the machine gave no verdict: {gate.why_unfit}"
    advice = "ADVICE, NO VERDICT: " * gate.is_advice
    return f"{advice}{_verdict_word(gate.verdict).upper()}: {what}: {counts} ({rule})"


def _verdict_word(verdict: Verdict | None) -> str:
    return gate_lib.NO_VERDICT if verdict is None else verdict.value


def _word(case: JudgedCase) -> str:
    return _verdict_word(case.verdict) if case.count is None else case.count.word


def record_of(gate: Gate) -> GateRecord:
    """Returns what a gate concluded, as a record."""
    return gate.record(headline=headline(gate), notes=_notes_of_record(gate))


def _notes_of_record(gate: Gate) -> Iterator[str]:
    yield from _notes_of_counts(gate)
    yield from _notes_of_looks(gate)


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
            f" {change_text(gate.sustained.value)} {_interval(gate.sustained)} longer"
            f" (n = {gate.sustained.n}), over all cases of both sides"
        )
    # Where a case is slower as a whole, its processes stand out for that reason.
    is_slower = any(case.verdict is Verdict.REGRESS for case in gate.cases)
    if paired.has_slow_processes and not is_slower:
        yield (
            f"single processes are {worse}: in {paired.num_slower}"
            " runs those of this tree stand out by more than"
            f" {change_text(paired.stands_out)}, and in {paired.num_faster} those of"
            f" the baseline (sign test, p = {paired.p_value:.2g})"
        )
    for case in gate.cases:
        for name, other in case.others.items():
            yield (
                f"{case.name}: {name}: {other.verdict.value}: {worse} by"
                f" {change_text(other.slowdown.value)} {_interval(other.slowdown)};"
                f" {other.delta:.0%} matters"
            )


def _notes(gate: Gate) -> Iterator[str]:
    if gate.metric.is_quality:
        yield QUALITY
    if gate.is_weaker:
        yield WEAKER_QUALITY if gate.metric.is_quality else WEAKER
    if gate.differences:
        listed = "; ".join(gate.differences)
        yield f"not comparable, shown only and never a pass: {listed}"
    yield from (f"{case.name}: {case.reason}" for case in gate.all_cases if case.reason)
    ratio = None if gate.twin is None else gate.twin.strict or gate.twin.ratio
    if ratio is not None and ratio.has_interval:
        yield (
            f"A/A control (one case measured twice): {ratio.value:.3f}"
            f" [{ratio.low:.3f}, {ratio.high:.3f}] ({ratio.confidence:.0%}), must"
            " include 1"
        )
    yield from _notes_of_record(gate)
    if gate.turns.num_turns:
        yield f"discarded blocks: {gate.turns.num_void} of {gate.turns.num_turns}"
    load = gate.load
    if load is not None and (load.num_busy or load.num_unknown):
        why = ", and what is unknown does not pass" * bool(load.num_unknown)
        yield f"caution: {load_text(load)}{why}"
    yield from (f"failed: {failure}" for failure in gate.failures)


def _columns(gate: Gate) -> tuple[str, ...]:
    confidence = f"interval, at least {1 - 2 * gate.alpha:.0%}"
    return ("case", f"{gate.metric.worse} by", confidence, "n", "verdict")


def _row(case: JudgedCase) -> tuple[str, str, str, str, str]:
    count = case.count
    cells = "-", "-", "-"
    if count is not None:
        sides = count.before, count.after
        cells = share_text(*sides), exact_text(*sides), str(count.n)
    elif case.judgement is not None:
        of = case.judgement.slowdown
        cells = change_text(of.value), _interval(of), str(of.n)
    return (case.name, *cells, _word(case))


def gate_text(gate: Gate) -> str:
    """Writes a gate for a terminal."""
    table = formats.aligned(_columns(gate), [*map(_row, gate.all_cases)])
    return "\n".join([*table, *_notes(gate), headline(gate)])


def gate_markdown(gate: Gate) -> str:
    """Writes a gate for a pull request."""
    notes = [f"- {formats.escaped(note)}" for note in _notes(gate)]
    table = formats.markdown_table(_columns(gate), [*map(_row, gate.all_cases)])
    return "\n".join([f"**{formats.escaped(headline(gate))}**", "", *table, "", *notes])


def gate_github(gate: Gate) -> str:
    """Writes a gate as annotations of GitHub's workflow commands."""
    found = [
        (case.verdict, f"{gate.metric.name}: {_sentence(gate, case)}")
        for case in gate.all_cases
    ]
    found += [(None, failure) for failure in gate.failures]
    is_decided = gate.has_risen or not (gate.failures or gate.is_advice)
    found.append((gate.verdict if is_decided else None, headline(gate)))
    lines = []
    for verdict, text in found:
        is_passed = verdict is not None and verdict.is_pass
        level = "notice" if is_passed else "warning"
        level = "error" if verdict is Verdict.REGRESS else level
        escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        lines.append(f"::{level} title=performance gate::{escaped}")
    return "\n".join(lines)


def _sentence(gate: Gate, case: JudgedCase) -> str:
    name, change, interval, number, verdict = _row(case)
    if case.count is not None:
        return f"{name}: {verdict}: {interval} ({change}), n {number}"
    return f"{name}: {verdict}: {gate.metric.worse} by {change} {interval}, n {number}"


def gate_junit(gate: Gate) -> str:
    """Writes a gate as JUnit XML, in agreement with its exit code.

    A regression is a failure, what could not be measured an error, and a verdict that
    is inconclusive is skipped, with its reason. The suite has a failure if and only if
    the exit code is 1.
    """
    suite = ET.Element("testsuite", name=f"gate {gate.metric.name}")

    def add(name: str, outcome: str, text: str, *, is_exact: bool = False) -> None:
        element = ET.SubElement(
            suite, "testcase", classname=f"gate.{gate.metric.name}", name=name
        )
        if outcome:
            ET.SubElement(element, outcome, message=text)
        elif is_exact:  # what was counted is said of a case that passes too
            ET.SubElement(element, "system-out").text = text

    for case in gate.all_cases:
        said = "" if case.verdict is None else _sentence(gate, case)
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
    for total, outcome in (
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        suite.set(total, str(len(suite.findall(f"testcase/{outcome}"))))
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
            "twin": None if gate.twin is None else estimate_data(gate.twin.ratio),
            "num_turns": gate.turns.num_turns,
            "num_void_turns": gate.turns.num_void,
            "failures": list(gate.failures),
        },
        indent=2,
    )


def _case_data(case: JudgedCase) -> dict[str, Any]:
    judgement = case.judgement
    what: dict[str, Any] = {"benchmark": case.name}
    if case.case is not None:
        what = {
            "backend": case.case.spec.backend,
            "num_replicas": case.case.spec.num_replicas,
            "modes": [mode.value for mode in case.case.modes],
        }
    return {
        **what,
        "verdict": None if case.verdict is None else case.verdict.value,
        "slowdown": None if judgement is None else estimate_data(judgement.slowdown),
        "others": {
            name: {
                "verdict": of.verdict.value,
                "delta": of.delta,
                "slowdown": estimate_data(of.slowdown),
            }
            for name, of in case.others.items()
        },
        "count": None if case.count is None else dataclasses.asdict(case.count),
        "reason": case.reason,
    }


def power_text(
    spread: float,
    rule: Design,
    *,
    source: str,
    num_cases: int,
    minutes_per_generation: float,
) -> str:
    """Says what a gate finds at a given standard deviation of the log ratio.

    Args:
      spread: Of the log ratio over runs.
      rule: When it looks, what matters, and how often it may err.
      source: Where the spread is from, in words.
      num_cases: Cases of the gate; the change is in one of them.
      minutes_per_generation: Of a run, start-up included.
    """
    effects, last = sorted({*EFFECTS, rule.delta}), rule.looks[-1]
    share, minutes = power.DEFAULT_POWER, last * minutes_per_generation
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
            f" simulated {power.NUM_GATES} times; {when}, at most {minutes:.1f} min:"
        ),
        "true change   pass  regress  inconclusive         runs",
    ]
    lines += [
        f"{point.effect:+10.1%}  {point.passes:5.3f}  {point.regresses:7.3f}"
        f"  {point.inconclusive:12.3f}  {point.generations:11.1f}"
        for point in power.operating_points(spread, effects, rule, num_cases=num_cases)
    ]
    lines += [
        "",
        (f"for the correct verdict in {share:.0%} of gates with one look (--repeats):"),
        "true change  verdict         runs   minutes",
    ]
    for need in power.needed(
        effects,
        spread=spread,
        minutes_per_generation=minutes_per_generation,
        num_cases=num_cases,
        delta=rule.delta,
        alpha=rule.alpha,
    ):
        number, takes = f"> {power.MOST_GENERATIONS}", "-"
        if need.num_generations is not None and need.minutes is not None:
            number, takes = str(need.num_generations), f"{need.minutes:.1f}"
        word = need.verdict.value
        lines.append(f"{need.effect:+10.1%}   {word:7}  {number:>11}  {takes:>8}")
    half_width = math.expm1(power.median_half_width(spread, last))
    least = power.smallest_effect_found(spread, rule, num_cases=num_cases)
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
