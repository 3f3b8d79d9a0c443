"""The page of two studies: their ratios, and what differs.

They were not measured in the same rounds, so their ratios are advice.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from reports.charts import bars
from reports.page import page
from reports.site.card import NO_MACHINE
from reports.words import formats, judgement, names
from results import errors
from results.figures import scaling
from results.judging import gate_metrics
from results.study import case_pairs

if TYPE_CHECKING:
    from results.judging.gate_metrics import Metric, Ratio
    from results.study.case_pairs import StudyDifference
    from results.study.cases import Case, Study

FIRST, SECOND = "A", "B"
MOST_DIFFERENCES: Final = 14
"""Of the Markdown, which is to fit a pull request."""
ADVICE: Final = (
    "Advice, no verdict: the effect of the day and of the machine's state was not"
    " measured, and three to seven of ten comparisons of equal programs would differ;"
    " gate --baseline REVISION measures both in the same rounds"
)
_COLUMNS: Final = ("case", "ratio", "95% interval", "n", "p (Holm)", "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Two studies: the ratios of their cases, and in what they differ."""

    first: Study  # A, whose figures are the numerators.
    second: Study  # B.
    metric: Metric  # What is compared.
    rows: tuple[Ratio, ...]  # A / B of the cases that both have, in planned order.
    settings: tuple[str, ...]  # In which cases differ, one line each.
    differences: tuple[StudyDifference, ...]  # In what the studies differ.
    # Why nothing may be concluded from the ratios; empty if it may.
    reasons: tuple[str, ...]
    only_first: tuple[str, ...]  # Cases that only A measured.
    only_second: tuple[str, ...]  # Cases that only B measured.


def compare_studies(first: Study, second: Study, metric: Metric) -> Compared:
    """Compares the cases that two studies share, and names in what both differ.

    Raises ResultsError for two studies with the same trials, or without a common case.
    """

    def trials(study: Study) -> set[tuple[str, str]]:
        return {
            (entry.trial_id, entry.status.started_at)
            for entry in study.planned
            if entry.status is not None
        }

    if first.plan == second.plan and trials(first) == trials(second):
        raise errors.ResultsError(
            f"both studies are {first.plan.study!r} with the same trials, which has no"
            " difference; name two studies"
        )
    both = case_pairs.pairs(first, second)
    rows = gate_metrics.ratios(both, metric)
    if not rows:
        raise errors.ResultsError(
            f"no case was measured in both {first.plan.study!r} and"
            f" {second.plan.study!r}; see 'status' of both"
        )
    only_first, only_second = (
        tuple(
            case.label
            for case in study.cases
            if case.case_id not in {pair[side].case_id for pair in both}
        )
        for side, study in enumerate((first, second))
    )
    settings = (text for pair in both for text in case_pairs.settings(*pair))
    return Compared(
        first=first,
        second=second,
        metric=metric,
        rows=tuple(rows),
        settings=tuple(dict.fromkeys(settings)),
        differences=case_pairs.study_differences(first, second),
        reasons=case_pairs.why_not_comparable(first, second),
        only_first=only_first,
        only_second=only_second,
    )


def headline(compared: Compared, first: str = FIRST, second: str = SECOND) -> str:
    if compared.reasons:
        return (
            "These two studies are not comparable, so the ratios below are shown and "
            f"judge nothing: {'; '.join(compared.reasons)}."
        )
    ratios = [row.estimate for row in compared.rows]
    cases = formats.count(len(ratios), "shared case")
    what = compared.metric.name.replace("_", " ")
    apart = [ratio.value for ratio in ratios if ratio.excludes(1.0)]
    parts: list[str] = []
    for is_more, word in ((True, "higher"), (False, "lower")):
        chosen = [value for value in apart if (value > 1) == is_more]
        if chosen:
            changes = sorted(abs(100 * (value - 1)) for value in chosen)
            by = formats.span([f"{change:.1f}" for change in changes])
            than = "" if parts else f" than in {second}"
            parts.append(
                f"{by}{formats.THIN_SPACE}% {word}{than} in {len(chosen)} of {cases}"
            )
    text = f"No interval of {cases} excludes equal {what}"
    if parts:
        text = f"In {first}, {what} is {', and '.join(parts)}"
    return f"{text}."


def comparison_page(
    compared: Compared, *, links: Sequence[tuple[str, str]] = ()
) -> str:
    """Returns the page of two studies as HTML; the same records give the same bytes.

    ``links`` are above its content: texts and addresses.
    """
    rows = compared.rows
    reach = bars.reach(row.estimate for row in rows)
    sides = {FIRST: compared.first, SECOND: compared.second}
    html = page.render(
        "comparison",
        title=" and ".join(each.plan.study for each in sides.values())
        + ": what changed?",
        site_style=page.asset("site.css", "site"),
        compared=compared,
        headline=headline(compared),
        rows=[_row(row, reach) for row in rows],
        reach=(f"{1 / reach:.2g}", f"{reach:g}"),
        advice=ADVICE,
        notes=[note for note in _notes(compared) if note != ADVICE],
        links=links,
        sides=[
            {
                "letter": letter,
                "study": study.plan.study,
                "machine": _machine(study),
                "planned": formats.minute(study.plan.created_at),
                "trials": f"{sum(entry.is_ok for entry in study.planned)} of"
                f" {formats.count(len(study.planned), 'trial')} ok",
            }
            for letter, study in sides.items()
        ],
    )
    return f"{html}\n"


def _machine(study: Study) -> str:
    return names.machine(study.environments) if study.environments else NO_MACHINE


def _rate(case: Case) -> str:
    estimate = scaling.case_cell(case, "throughput").estimate
    return formats.ABSENT if estimate is None else formats.significant(estimate.value)


def _row(row: Ratio, reach: float) -> dict[str, object]:
    estimate, p_value = row.estimate, row.p_value
    is_apart = estimate.excludes(1.0)
    text = f"advice: {'not ' * (not is_apart)}apart"
    if p_value is None:
        text = "no test: one side has a single run"
    return {
        "name": row.first.label,
        "ratio": estimate,
        "rates": [_rate(row.first), _rate(row.second)],
        "bar": bars.ratio_bar(estimate, reach, is_marked=is_apart),
        "n": f"{len(row.first.ok_entries)} / {len(row.second.ok_entries)}",
        "p_value": p_value,
        "text": text,
    }


def _notes(compared: Compared) -> list[str]:
    """Returns what a reader of the ratios has to know, one line each."""
    notes = [judgement.WEAKER, ADVICE]
    if compared.reasons:
        notes.append(f"not comparable, shown only: {'; '.join(compared.reasons)}")
    notes += [f"setting compared: {setting}" for setting in compared.settings]
    untested = [row.first.label for row in compared.rows if row.p_value is None]
    if untested:
        notes.append(f"one run, which tests nothing: {'; '.join(untested)}")
    sides = f"{compared.first.plan.study} / {compared.second.plan.study}"
    notes.append(
        f"ratios of {compared.metric.name}, {sides}, each with its own 95 % interval"
    )
    return notes


def _cells(row: Ratio) -> tuple[str, ...]:
    ratio, p_value = row.estimate, row.p_value
    interval = "-"
    if ratio.has_interval:
        interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
    p_text = "-" if p_value is None else formats.p_value(p_value)
    number = str(ratio.n)
    return row.first.label, f"{ratio.value:.3f}", interval, number, p_text, "advice"


def _only(compared: Compared) -> list[str]:
    sides = ((FIRST, compared.only_first), (SECOND, compared.only_second))
    return [f"only in {side}: {'; '.join(cases)}" for side, cases in sides if cases]


def as_text(compared: Compared) -> str:
    lines = [f"A: {compared.first.plan.study}", f"B: {compared.second.plan.study}", ""]
    lines += [headline(compared), "", "what differs (A / B)"]
    lines += [
        f"  {difference.group}: {difference.text}"
        for difference in compared.differences
    ]
    if not compared.differences:
        lines.append("  nothing that is recorded")
    rows = [*map(_cells, compared.rows)]
    lines += [*_only(compared), "", *formats.aligned(_COLUMNS, rows)]
    return "\n".join([*lines, *_notes(compared)])


def as_markdown(compared: Compared) -> str:
    first, second = (
        formats.escaped(each.plan.study) for each in (compared.first, compared.second)
    )
    lines = [
        f"### A {first}, B {second}",
        "",
        f"**{formats.escaped(headline(compared))}**",
        "",
    ]
    shown = compared.differences[:MOST_DIFFERENCES]
    if shown:
        facts = [(each.group, each.name, each.first, each.second) for each in shown]
        lines += [*formats.markdown_table(("differs", "what", "A", "B"), facts), ""]
    num_more = len(compared.differences) - len(shown)
    if num_more:
        lines += [f"{num_more} more differences are in the page.", ""]
    lines += [f"- {formats.escaped(text)}" for text in _only(compared)]
    rows = [*map(_cells, compared.rows)]
    lines += [*formats.markdown_table(_COLUMNS, rows), ""]
    lines += [f"- {formats.escaped(note)}" for note in _notes(compared)]
    return "\n".join(lines)


def as_json(compared: Compared) -> str:
    return json.dumps(
        {
            "headline": headline(compared),
            "is_comparable": not compared.reasons,
            "reasons": list(compared.reasons),
            "differs": [
                dataclasses.asdict(difference) for difference in compared.differences
            ],
            "only_first": list(compared.only_first),
            "only_second": list(compared.only_second),
            "comparison": {
                "first": compared.first.plan.study,
                "second": compared.second.plan.study,
                "metric": compared.metric.name,
                "is_weaker": True,
                "differences": list(compared.reasons),
                "settings": list(compared.settings),
                "rows": [
                    {
                        "case": row.first.label,
                        "ratio": judgement.estimate_data(row.estimate),
                        "p_value": row.p_value,
                        "differs": False,  # advice
                    }
                    for row in compared.rows
                ],
            },
        },
        indent=2,
    )


WRITERS: Final[dict[str, Callable[[Compared], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
