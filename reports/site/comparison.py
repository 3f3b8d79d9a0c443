"""The page of two studies: what differs, their ratios, and both on shared axes."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Final

import pandas as pd
from markupsafe import Markup

from reports.charts import over_replicas
from reports.charts.over_replicas import EFFICIENCY, THROUGHPUT, ReplicaCurve
from reports.page import page
from reports.words import formats, ratio_table
from results import errors
from results.figures import frame as frame_lib
from results.judging import quality_gate
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from reports.charts.over_replicas import Quantity
    from results.judging.gate_metrics import Metric
    from results.judging.quality_gate import RatioTable, Row
    from results.statistics.estimates import Estimate
    from results.study.case_pairs import StudyDifference
    from results.study.cases import Study


WIDTH, HEIGHT = 160, 20
REACHES: Final = (1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Ratios at the right end of an axis; its left end is the inverse."""


def bar_reach(estimates: Iterable[Estimate]) -> float:
    """Returns the ratio at the right end of an axis that shows all values.

    An interval that is longer than that ends at the edge: its ends are in the table.
    """
    furthest = max((abs(math.log(of.value)) for of in estimates), default=0.0)
    fitting = [ratio for ratio in REACHES if math.log(ratio) >= 1.2 * furthest]
    return fitting[0] if fitting else REACHES[-1]


def bar_ends(right: float) -> tuple[str, str]:
    """Returns the labels at both ends of an axis."""
    return f"{1 / right:.2g}", f"{right:g}"


def draw_bar(estimate: Estimate, right: float, *, is_marked: bool) -> Markup:
    """Returns the ratio as an ``<svg>`` element, hidden from screen readers.

    The cells beside it have its numbers.
    """
    middle = HEIGHT / 2
    one = f"M{WIDTH / 2} 0V{HEIGHT}"
    parts = [f'<path d="{one}" stroke="var(--muted)" stroke-dasharray="2 2"/>']
    color = "var(--accent)" if is_marked else "var(--muted)"
    if estimate.low is not None and estimate.high is not None:
        low, high = _across(estimate.low, right), _across(estimate.high, right)
        parts.append(
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{color}" '
            'stroke-width="2.5"/>'
        )
    x = _across(estimate.value, right)
    parts.append(f'<circle cx="{x:.1f}" cy="{middle}" r="4" fill="{color}"/>')
    return Markup(  # noqa: S704  # constants and numbers
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" '
        f'fill="none">{"".join(parts)}</svg>'
    )


def _across(ratio: float, right: float) -> float:
    # The end of a very long interval can be too small for a number.
    share = 0.0 if ratio <= 0 else (math.log(ratio) / math.log(right) + 1) / 2
    return 4 + (WIDTH - 8) * min(max(share, 0.0), 1.0)


FIRST, SECOND = "A", "B"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Two studies that can be compared."""

    first: Study  # A, whose figures are the numerators.
    second: Study  # B.
    table: RatioTable  # The ratios A / B of the cases that both have.
    differences: tuple[StudyDifference, ...]  # In what they differ.
    # Why nothing may be concluded from the ratios; empty if it may.
    reasons: tuple[str, ...]
    only_first: tuple[str, ...]  # Cases that only A measured.
    only_second: tuple[str, ...]  # Cases that only B measured.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Panel:
    """One backend in one scaling mode."""

    title: str
    drawing: Markup


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """A figure with a panel per backend and scaling mode, on the same axes."""

    title: str
    note: str
    panels: tuple[_Panel, ...]


def compare_studies(first: Study, second: Study, metric: Metric) -> Compared:
    """The comparison of two studies; ``reasons`` says whether it may be used."""
    if _is_same(first, second):
        raise errors.ResultsError(
            f"both studies are {first.plan.study!r} with the same trials, which has no"
            " difference; name two studies"
        )
    table = quality_gate.of_studies(first, second, metric)
    both = case_pairs.pairs(first, second)
    here = {case.case_id for case, _ in both}
    there = {case.case_id for _, case in both}
    return Compared(
        first=first,
        second=second,
        table=table,
        differences=case_pairs.study_differences(first, second),
        reasons=table.differences,
        only_first=_others(first, here),
        only_second=_others(second, there),
    )


def _is_same(first: Study, second: Study) -> bool:
    def found(study: Study) -> set[tuple[str, str]]:
        return {
            (entry.trial_id, entry.trial.status.started_at)
            for entry in study.planned
            if entry.trial is not None and entry.trial.status is not None
        }

    return first.plan == second.plan and found(first) == found(second)


def _others(study: Study, shared: set[str]) -> tuple[str, ...]:
    return tuple(case.label for case in study.cases if case.case_id not in shared)


def headline(compared: Compared, first: str = FIRST, second: str = SECOND) -> str:
    """Returns what the ratios say, in at most three sentences."""
    rows = compared.table.rows
    if compared.reasons:
        return (
            "These two studies are not comparable, so the ratios below are shown and "
            f"judge nothing: {'; '.join(compared.reasons)}."
        )
    cases = formats.count(len(rows), "shared case")
    what = compared.table.metric.name.replace("_", " ")
    apart = [row for row in rows if row.ratio.excludes(1.0)]
    parts: list[str] = []
    for is_more, word in ((True, "higher"), (False, "lower")):
        chosen = [row for row in apart if (row.ratio.value > 1) == is_more]
        if chosen:
            than = "" if parts else f" than in {second}"
            where = f"{len(chosen)} of {cases}"
            parts.append(f"{_range(chosen)} {word}{than} in {where}")
    text = f"No interval of {cases} excludes equal {what}"
    if parts:
        text = f"In {first}, {what} is {', and '.join(parts)}"
    return f"{text}. {ratio_table.ADVICE}."


def _range(rows: Sequence[Row]) -> str:
    """Writes by how many percent figures differ, at least and at most."""
    changes = sorted(abs(100 * (row.ratio.value - 1)) for row in rows)
    texts = list(dict.fromkeys(f"{change:.1f}" for change in (changes[0], changes[-1])))
    return f"{' to '.join(texts)}{formats.THIN_SPACE}%"


def build(compared: Compared, *, links: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the page as HTML; the same records give the same bytes."""
    reach = bar_reach(row.ratio for row in compared.table.rows)
    return (
        str(
            page.render(
                "comparison",
                title=f"{_name(compared.first)} and {_name(compared.second)} compared",
                site_style=page.asset("site.css", "site"),
                compared=compared,
                headline=headline(compared),
                rows=list(_rows(compared.table, reach)),
                reach=bar_ends(reach),
                notes=ratio_table.comparison_notes(compared.table),
                figures=_figures(compared),
                links=links,
                sides=[
                    _side(FIRST, compared.first),
                    _side(SECOND, compared.second),
                ],
            )
        )
        + "\n"
    )


def _name(study: Study) -> str:
    return study.plan.study


def _side(letter: str, study: Study) -> dict[str, str]:
    num_ok = sum(entry.is_ok for entry in study.planned)
    return {
        "letter": letter,
        "study": study.plan.study,
        "planned": formats.minute(study.plan.created_at),
        "trials": f"{num_ok} of {formats.count(len(study.planned), 'trial')} ok",
    }


def _rows(table: RatioTable, reach: float) -> Iterator[dict[str, object]]:
    for row in table.rows:
        estimate = row.ratio
        yield {
            "name": row.name,
            "ratio": estimate,
            "bar": draw_bar(estimate, reach, is_marked=estimate.excludes(1.0)),
            "n": f"{len(row.first.ok_entries)} / {len(row.second.ok_entries)}",
            "p_value": row.p_value,
            "text": _conclusion(row),
        }


def _conclusion(row: Row) -> str:
    if row.p_value is None:
        return "no test: one side has a single run"
    return f"advice: {'not ' * (not row.ratio.excludes(1.0))}apart"


def _figures(compared: Compared) -> list[_Drawn]:
    """Returns efficiency and throughput of both studies, on the same axes."""
    sides = [
        frame[frame["figure"] == "scaling"]
        for frame in map(frame_lib.points_frame, (compared.first, compared.second))
    ]
    notes = {
        EFFICIENCY: "Speedup divided by the number of replicas; dotted: ideal.",
        THROUGHPUT: f"{compared.first.example_unit} per second, over all replicas.",
    }
    return [
        _Drawn(title=quantity.name, note=note, panels=panels)
        for quantity, note in notes.items()
        if (panels := _panels(sides, quantity))
    ]


def _panels(sides: Sequence[pd.DataFrame], quantity: Quantity) -> tuple[_Panel, ...]:
    """Returns a panel per scaling mode and backend, with a line per study."""
    shown = [
        rows[rows["quantity"].eq(quantity.slug) & rows["kind"].eq("estimate")]
        for rows in sides
    ]
    rows = pd.concat(shown)
    if rows.empty:
        return ()
    limits, sizes = over_replicas.y_limits(rows, quantity), over_replicas.sizes_of(rows)
    panels: list[_Panel] = []
    for mode, backend in dict.fromkeys(zip(rows["mode"], rows["backend"], strict=True)):
        curves = [
            ReplicaCurve(
                rows=over_replicas.rows_of(
                    side[(side["mode"] == mode) & (side["backend"] == backend)]
                ),
                name=letter,
                series=place,
                label=letter,
                prefix=f"{letter}: ",
            )
            for place, (letter, side) in enumerate(
                zip((FIRST, SECOND), shown, strict=True)
            )
        ]
        panel = over_replicas.Panel(
            quantity=quantity,
            curves=tuple(curve for curve in curves if curve.rows),
            sizes=sizes,
            y_limits=limits,
        )
        title = f"{backend}, {mode} scaling"
        drawing = over_replicas.draw(
            panel,
            slug=f"{quantity.slug}-{len(panels)}",
            title=f"{quantity.name}, {title}",
        )
        panels.append(_Panel(title=title, drawing=drawing))
    return tuple(panels)


MOST_DIFFERENCES: Final = 14
"""Of the Markdown, which is to fit a pull request."""


def as_text(compared: Compared) -> str:
    """Writes a comparison for a terminal."""
    lines = [f"A: {compared.first.plan.study}", f"B: {compared.second.plan.study}", ""]
    lines += [headline(compared), "", "what differs (A / B)"]
    lines += [f"  {found.group}: {found.text}" for found in compared.differences]
    if not compared.differences:
        lines.append("  nothing that is recorded")
    lines += [*_only(compared), "", ratio_table.comparison_text(compared.table)]
    return "\n".join(lines)


def as_markdown(compared: Compared) -> str:
    """Writes a comparison for a pull request."""
    first, second = (
        formats.escaped(of.plan.study) for of in (compared.first, compared.second)
    )
    lines = [
        f"### A {first}, B {second}",
        "",
        f"**{formats.escaped(headline(compared))}**",
        "",
    ]
    shown = compared.differences[:MOST_DIFFERENCES]
    if shown:
        rows = [(of.group, of.name, of.first, of.second) for of in shown]
        lines += [*formats.markdown_table(("differs", "what", "A", "B"), rows), ""]
    num_more = len(compared.differences) - len(shown)
    if num_more:
        lines += [f"{num_more} more differences are in the page.", ""]
    lines += [f"- {formats.escaped(text)}" for text in _only(compared)]
    lines.append(ratio_table.comparison_markdown(compared.table))
    return "\n".join(lines)


def as_json(compared: Compared) -> str:
    """Writes a comparison as data."""
    return json.dumps(
        {
            "headline": headline(compared),
            "is_comparable": not compared.reasons,
            "reasons": list(compared.reasons),
            "differs": [dataclasses.asdict(of) for of in compared.differences],
            "only_first": list(compared.only_first),
            "only_second": list(compared.only_second),
            "comparison": json.loads(ratio_table.comparison_json(compared.table)),
        },
        indent=2,
    )


def _only(compared: Compared) -> list[str]:
    sides = (("A", compared.only_first), ("B", compared.only_second))
    return [f"only in {side}: {'; '.join(cases)}" for side, cases in sides if cases]


WRITERS: Final[dict[str, Callable[[Compared], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
