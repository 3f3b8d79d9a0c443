"""A bisection as text, Markdown or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from reports.words import markdown, ratio_table
from reports.words.judging.judgement import change_text
from results.judging.bisection import suspects
from results.judging.exact import exact_text

if TYPE_CHECKING:
    from results.records.bisect_record import BisectRecord, BisectStep
    from results.records.gate_record import GateCase

_DIGITS: Final = 12
_MOST_LISTED: Final = 8
_COLUMNS: Final = ("commit", "is", "case", "change", "interval", "n", "study")


def headline(record: BisectRecord, subject: str = "") -> str:
    """Returns the answer in one sentence.

    Args:
      record: The bisection.
      subject: The first line of the message of the first bad commit.
    """
    left = suspects(record.commits, record.steps, record.alpha)
    good, bad = _short(record.good), _short(record.commits[-1])
    range_text = f"after {good}, up to {bad}"
    rule = f"wrong with probability {record.alpha:.1%} at most, over all steps"
    if left.is_found:
        (commit,) = left.commits
        more = f" ({subject})" if subject else ""
        return f"FIRST BAD COMMIT: {_short(commit)}{more}; {rule}"
    if left.is_bad_good:
        return (
            f"NO REGRESSION: {bad} is not {record.worse} than {good} by"
            f" {record.delta:.1%}; {rule}"
        )
    if not left.is_bad_known:
        return f"NOT DECIDED: whether {bad} is {record.worse} than {good}"
    shown = ", ".join(map(_short, left.commits[:_MOST_LISTED]))
    more = f" and {len(left.commits) - _MOST_LISTED} more" * (
        len(left.commits) > _MOST_LISTED
    )
    return (
        f"NOT DECIDED: the first bad commit {range_text} is one of {len(left.commits)},"
        f" oldest first: {shown}{more}; {rule}"
    )


def _short(commit: str) -> str:
    return commit[:_DIGITS]


def step_text(step: BisectStep) -> str:
    """Returns one step in a line."""
    found = [f"{case.name}: {_change(case)}" for case in step.cases]
    more = "; ".join([step.reason] * bool(step.reason) + found)
    return f"{_short(step.commit)} is {step.outcome.value}{': ' * bool(more)}{more}"


def _change(case: GateCase) -> str:
    if case.after is not None:
        return f"{_interval(case)}, n = {case.n}"
    if case.slowdown is None:
        return case.reason
    return f"{change_text(1 + case.slowdown)} {_interval(case)}, n = {case.n}"


def _interval(case: GateCase) -> str:
    if case.before is not None and case.after is not None:
        return exact_text(case.before, case.after)
    if case.low is None or case.high is None:
        return "-"
    return f"[{change_text(1 + case.low)}, {change_text(1 + case.high)}]"


def _rows(record: BisectRecord) -> list[tuple[str, ...]]:
    order = {commit: place for place, commit in enumerate(record.commits)}
    rows: list[tuple[str, ...]] = []
    for step in sorted(record.steps, key=lambda step: order[step.commit]):
        head = (_short(step.commit), step.outcome.value)
        if not step.cases:
            rows.append((*head, step.reason or "-", "-", "-", "-", step.study or "-"))
        for case in step.cases:
            change = "-" if case.slowdown is None else change_text(1 + case.slowdown)
            rows.append(
                (
                    *head,
                    case.name,
                    change,
                    _interval(case),
                    str(case.n or "-"),
                    step.study,
                )
            )
    return rows


def _notes(record: BisectRecord) -> list[str]:
    spent = sum(step.level for step in record.steps)
    levels = {f"{1 - 2 * step.level:.1%}" for step in record.steps if step.level}
    return [
        (
            f"{record.metric} beside {_short(record.good)}: a positive change is"
            f" {record.worse}, and {record.delta:.1%} matters; intervals of"
            f" {', '.join(sorted(levels)) or 'no confidence'}"
        ),
        (
            f"{len(record.commits)} commits, {len(record.steps)} steps;"
            f" {spent:.2%} of the error of {record.alpha:.1%} is spent"
        ),
    ]


def as_text(record: BisectRecord, subject: str) -> str:
    """Returns a bisection for a terminal."""
    return "\n".join(
        [
            headline(record, subject),
            *ratio_table.aligned(_COLUMNS, _rows(record)),
            *_notes(record),
        ]
    )


def as_markdown(record: BisectRecord, subject: str) -> str:
    """Returns a bisection for a comment or a summary."""
    lines = [
        f"**{markdown.escaped(headline(record, subject))}**",
        "",
        *markdown.table(_COLUMNS, _rows(record)),
        "",
        *(f"- {markdown.escaped(note)}" for note in _notes(record)),
    ]
    return "\n".join(lines)


def as_json(record: BisectRecord, subject: str) -> str:
    """Returns a bisection as data."""
    left = suspects(record.commits, record.steps, record.alpha)
    data: dict[str, Any] = {
        "headline": headline(record, subject),
        "first_bad": left.commits[0] if left.is_found else None,
        "suspects": [] if left.is_bad_good else list(left.commits),
        **record.model_dump(mode="json"),
    }
    return json.dumps(data, indent=2)
