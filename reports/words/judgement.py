"""A gate and a comparison as text, Markdown, JSON, JUnit XML, or notes for GitHub."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from reports.words import formats, markdown
from results.statistics.judge import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.compare import RatioTable, Row
    from results.judging.gate import Gate, JudgedCase
    from results.statistics.estimates import Estimate

WEAKER: Final = (
    "a weaker comparison: the two were not measured in the same rounds, so nothing that"
    " happened to the machine cancels"
)
WEAKER_QUALITY: Final = (
    "a weaker comparison: the runs of the two studies are not paired by seed"
)
QUALITY: Final = (
    "the mean over seeds (n) of how much worse quality runs end, relative to the"
    " baseline's mean"
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
    what = f"{gate.metric.name} against {gate.baseline}"
    if gate.why_unfit:
        return f"UNFIT: {what}: no verdict, because {gate.why_unfit}"
    if not gate.num_ok:
        return f"NO VERDICT: {what}: nothing was measured"
    verdict = gate.verdict
    name = "no verdict" if verdict is None else verdict.value
    counts = ", ".join(
        f"{sum(_verdict_of(case) == value for case in gate.cases)} {value}"
        for value in dict.fromkeys(_verdict_of(case) for case in gate.cases)
    )
    rule = (
        f"{gate.metric.worse} by {gate.delta:.1%} matters, and passes with probability"
        f" {gate.alpha:.1%}"
    )
    return f"{name.upper()}: {what}: {counts} ({rule})"


def _verdict_of(case: JudgedCase) -> str:
    return "no verdict" if case.judgement is None else case.judgement.verdict.value


def _notes(gate: Gate) -> list[str]:
    notes = []
    if gate.metric.is_quality:
        notes.append(QUALITY)
    if gate.is_weaker:
        notes.append(WEAKER_QUALITY if gate.metric.is_quality else WEAKER)
    if gate.differences:
        listed = "; ".join(gate.differences)
        notes.append(f"not comparable, shown only and never a pass: {listed}")
    notes += [f"{case.name}: {case.reason}" for case in gate.cases if case.reason]
    if gate.twin is not None:
        ratio = gate.twin.strict or gate.twin.ratio
        if ratio.low is not None and ratio.high is not None:
            notes.append(
                f"twin (one case measured twice): {ratio.value:.3f}"
                f" [{ratio.low:.3f}, {ratio.high:.3f}] ({ratio.confidence:.0%}), must"
                " include 1"
            )
    if gate.turns.num_turns:
        notes.append(f"void turns: {gate.turns.num_void} of {gate.turns.num_turns}")
    notes += [f"failed: {failure}" for failure in gate.failures]
    return notes


def _rows(gate: Gate) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for case in gate.cases:
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
                case.judgement.verdict.value,
            )
        )
    return rows


def _columns(gate: Gate) -> tuple[str, ...]:
    confidence = f"{1 - 2 * gate.alpha:.0%} interval"
    return ("case", f"{gate.metric.worse} by", confidence, "n", "verdict")


def gate_text(gate: Gate) -> str:
    """Writes a gate for a terminal."""
    table = _table(_columns(gate), _rows(gate))
    return "\n".join([*table, *_notes(gate), headline(gate)])


def gate_markdown(gate: Gate) -> str:
    """Writes a gate for a pull request."""
    notes = [f"- {markdown.escaped(note)}" for note in _notes(gate)]
    table = markdown.table(_columns(gate), _rows(gate))
    return "\n".join(
        [f"**{markdown.escaped(headline(gate))}**", "", *table, "", *notes]
    )


def gate_github(gate: Gate) -> str:
    """Writes a gate as annotations of GitHub's workflow commands."""
    lines = []
    for row, case in zip(_rows(gate), gate.cases, strict=True):
        level = _level(None if case.judgement is None else case.judgement.verdict)
        lines.append(_annotation(level, f"{gate.metric.name}: {_sentence(gate, row)}"))
    lines += [_annotation("warning", note) for note in gate.failures]
    verdict = None if gate.failures else gate.verdict
    lines.append(_annotation(_level(verdict), headline(gate)))
    return "\n".join(lines)


def _sentence(gate: Gate, row: Sequence[str]) -> str:
    name, change, interval, number, verdict = row
    return f"{name}: {verdict}: {gate.metric.worse} by {change} {interval}, n {number}"


def _level(verdict: Verdict | None) -> str:
    if verdict is Verdict.REGRESS:
        return "error"
    return "notice" if verdict is not None and verdict.is_pass else "warning"


def _annotation(level: str, text: str) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title=performance gate::{escaped}"


def gate_junit(gate: Gate) -> str:
    """Writes a gate as JUnit XML: a regression is a failure, no verdict an error."""
    suite = ET.Element("testsuite", name=f"gate {gate.metric.name}")
    num_failures = num_errors = 0
    for row, case in zip(_rows(gate), gate.cases, strict=True):
        element = ET.SubElement(
            suite, "testcase", classname=f"gate.{gate.metric.name}", name=case.name
        )
        verdict = None if case.judgement is None else case.judgement.verdict
        text = case.reason or _sentence(gate, row)
        if verdict is Verdict.REGRESS:
            num_failures += 1
            ET.SubElement(element, "failure", message=text, type=verdict.value)
        elif verdict is None or not verdict.is_pass:
            num_errors += 1
            ET.SubElement(element, "error", message=text, type=row[-1])
    whole = ET.SubElement(
        suite, "testcase", classname=f"gate.{gate.metric.name}", name="all"
    )
    if gate.failures or gate.verdict is None or not gate.verdict.is_pass:
        is_regression = gate.verdict is Verdict.REGRESS
        num_failures += is_regression
        num_errors += not is_regression
        ET.SubElement(
            whole, "failure" if is_regression else "error", message=headline(gate)
        )
    ET.SubElement(suite, "system-out").text = "\n".join(_notes(gate))
    suite.set("tests", str(len(gate.cases) + 1))
    suite.set("failures", str(num_failures))
    suite.set("errors", str(num_errors))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


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
            "differences": list(gate.differences),
            "cases": [_case_data(case) for case in gate.cases],
            "twin": None if twin is None else _estimate(twin.ratio),
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
        "verdict": None if judgement is None else judgement.verdict.value,
        "slowdown": None if judgement is None else _estimate(judgement.slowdown),
        "reason": case.reason,
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.n,
        "confidence": estimate.confidence,
        "method": estimate.method,
    }


def comparison_notes(comparison: RatioTable) -> list[str]:
    """Returns what a reader of the ratios has to know, one line each."""
    notes = []
    if comparison.is_weaker:
        notes.append(WEAKER)
    if comparison.differences:
        listed = "; ".join(comparison.differences)
        notes.append(f"not comparable, shown only: {listed}")
    notes += [f"setting compared: {setting}" for setting in comparison.settings]
    if comparison.without_test:
        names = "; ".join(row.name for row in comparison.without_test)
        notes.append(f"one generation, which tests nothing: {names}")
    tested = len(comparison.rows) - len(comparison.without_test)
    notes.append(
        f"ratios of {comparison.metric.name}, {comparison.first} /"
        f" {comparison.second}, each with its own 95 % interval; 'differs' holds for"
        f" all {tested} together (Holm, 5 %)"
    )
    return notes


def _comparison_row(row: Row) -> tuple[str, ...]:
    ratio, p_value = row.difference.ratio, row.difference.p_value
    interval = "-"
    if ratio.low is not None and ratio.high is not None:
        interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
    return (
        row.name,
        f"{ratio.value:.3f}",
        interval,
        str(ratio.n),
        "-" if p_value is None else formats.p_value(p_value),
        "differs" if row.difference.holds else "no difference shown",
    )


_COMPARISON_COLUMNS = ("case", "ratio", "95% interval", "n", "p (Holm)", "")


def comparison_text(comparison: RatioTable) -> str:
    """Writes a comparison for a terminal."""
    rows = [_comparison_row(row) for row in comparison.rows]
    lines = [*_table(_COMPARISON_COLUMNS, rows), *comparison_notes(comparison)]
    return "\n".join(lines)


def comparison_markdown(comparison: RatioTable) -> str:
    """Writes a comparison for a document."""
    rows = [_comparison_row(row) for row in comparison.rows]
    notes = [f"- {markdown.escaped(note)}" for note in comparison_notes(comparison)]
    return "\n".join([*markdown.table(_COMPARISON_COLUMNS, rows), "", *notes])


def comparison_json(comparison: RatioTable) -> str:
    """Writes a comparison as data."""
    return json.dumps(
        {
            "first": comparison.first,
            "second": comparison.second,
            "metric": comparison.metric.name,
            "is_weaker": comparison.is_weaker,
            "differences": list(comparison.differences),
            "settings": list(comparison.settings),
            "rows": [
                {
                    "case": row.name,
                    "ratio": _estimate(row.difference.ratio),
                    "p_value": row.difference.p_value,
                    "differs": row.difference.holds,
                }
                for row in comparison.rows
            ],
        },
        indent=2,
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns columns with spaces."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in (columns, *rows)
    ]
