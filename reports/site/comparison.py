"""The page of two studies: what differs, their ratios, and both on shared axes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pandas as pd

from reports.charts import over_replicas
from reports.charts.over_replicas import EFFICIENCY, THROUGHPUT, ReplicaCurve
from reports.page import page
from reports.site import assets, ratio_bar
from reports.words import formats, ratio_table
from results import errors
from results.figures import points
from results.judging import quality_gate
from results.study import case_pairs, study_differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from reports.charts.over_replicas import Quantity
    from results.judging.gate_metrics import Metric
    from results.judging.quality_gate import RatioTable, Row
    from results.study.cases import Study
    from results.study.study_differences import StudyDifference

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
        differences=study_differences.of_studies(first, second),
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
    apart = [row for row in rows if row.difference.ratio.excludes(1.0)]
    parts: list[str] = []
    for is_more, word in ((True, "higher"), (False, "lower")):
        chosen = [row for row in apart if (_value(row) > 1) == is_more]
        if chosen:
            than = "" if parts else f" than in {second}"
            where = f"{len(chosen)} of {cases}"
            parts.append(f"{_range(chosen)} {word}{than} in {where}")
    text = f"No interval of {cases} excludes equal {what}"
    if parts:
        text = f"In {first}, {what} is {', and '.join(parts)}"
    return f"{text}. {ratio_table.ADVICE}."


def _value(row: Row) -> float:
    return row.difference.ratio.value


def _range(rows: Sequence[Row]) -> str:
    """Writes by how many percent figures differ, at least and at most."""
    changes = sorted(abs(100 * (_value(row) - 1)) for row in rows)
    texts = list(dict.fromkeys(f"{change:.1f}" for change in (changes[0], changes[-1])))
    return f"{' to '.join(texts)}{formats.THIN_SPACE}%"


def build(compared: Compared, *, links: Sequence[tuple[str, str]] = ()) -> str:
    """Returns the page as HTML; the same records give the same bytes."""
    reach = ratio_bar.reach(row.difference.ratio for row in compared.table.rows)
    return (
        str(
            page.render(
                "comparison",
                title=f"{_name(compared.first)} and {_name(compared.second)} compared",
                site_style=assets.text("site.css"),
                compared=compared,
                headline=headline(compared),
                rows=list(_rows(compared.table, reach)),
                reach=ratio_bar.ends(reach),
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
        estimate = row.difference.ratio
        yield {
            "name": row.name,
            "ratio": estimate,
            "bar": ratio_bar.draw(estimate, reach, is_marked=estimate.excludes(1.0)),
            "n": f"{len(row.first.ok_entries)} / {len(row.second.ok_entries)}",
            "p_value": row.difference.p_value,
            "text": _conclusion(row),
        }


def _conclusion(row: Row) -> str:
    if row.difference.p_value is None:
        return "no test: one side has a single generation"
    return f"advice: {'not ' * (not row.difference.ratio.excludes(1.0))}apart"


def _figures(compared: Compared) -> list[_Drawn]:
    """Returns efficiency and throughput of both studies, on the same axes."""
    sides = [
        frame[frame["figure"] == "scaling"]
        for frame in map(points.points_frame, (compared.first, compared.second))
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
