"""The summary for a terminal: the verdict in words and one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich.box
import rich.console
import rich.table
import rich.text

from reports.page.sections import learning, lost_time
from reports.view import View, view_store
from reports.words import brief, formats, verdict
from results.statistics import run_scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from results.store.study_store import Store
    from results.study.cases import Case, Entry

COLUMNS = ("backend", "mode", "N", "rate", "speedup", "efficiency", "of best", "ok")
DROPPED_FIRST = ("of best", "ok", "rate", "speedup")
"""Columns that a narrow terminal lacks, in this order; a number is never cut."""
_LEFT: Final = {"backend", "mode"}
_WIDEST: Final = 10_000


def summary_table(view: View, columns: Sequence[str] = COLUMNS) -> rich.table.Table:
    """Returns the table of points: one row per case and scaling mode."""
    table = rich.table.Table(
        title=rich.text.Text(view.study.plan.study),
        title_justify="left",
        box=rich.box.HORIZONTALS,  # the narrowest style with rules between the modes
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        table.add_column(
            view.rate_unit if name == "rate" else name,
            justify="left" if name in _LEFT else "right",
            # Only a name may be wrapped, and only where nothing else helps.
            no_wrap=name != "backend",
            overflow="fold" if name == "backend" else "ellipsis",
        )
    previous = None
    for point in view.points:
        if previous not in (None, point.mode):
            table.add_section()
        # On two lines, so that the table fits 80 columns.
        cells = {k: v.replace(" [", "\n[") for k, v in verdict.cells(point).items()}
        cells["N"] += " *" * point.is_oversubscribed
        if point.is_crossed_out:
            cells["rate"] = "not equivalent"
        # Text, not str: a name in brackets must not be parsed as markup.
        table.add_row(*(rich.text.Text(cells[name]) for name in columns))
        previous = point.mode
    return table


def columns_that_fit(view: View, console: rich.console.Console) -> tuple[str, ...]:
    """Returns the columns of the summary table that a terminal has room for."""
    left = [name for name in COLUMNS if name != "of best" or view.has_several_baselines]
    options = console.options.update(max_width=_WIDEST)
    for name in DROPPED_FIRST:
        wide = console.measure(summary_table(view, left), options=options)
        if wide.maximum <= console.width:
            break
        if name in left:
            left.remove(name)
    return tuple(left)


def quality_lines(view: View) -> list[str]:
    """Returns the result of each quality run, and the aggregate of each case."""
    lines = []
    is_images = view.study.example_unit == "images"
    # Not over runs with other seeds.
    over = f", interval over test {'images' if is_images else 'examples'}"
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            point = entry.result.curve[-1]
            reached = ", ".join(
                f"{metric.name} {' '.join(formats.measured(metric, metric.unit))} "
                f"(n = {metric.num_examples}{over * (metric.low < metric.high)})"
                for metric in point.quality
            )
            lines.append(
                f"{_name(case, entry)} reached {reached} after "
                f"{formats.whole(point.num_examples)} {view.study.example_unit}, "
                f"{formats.seconds(point.train_time_sec)}"
            )
        num_missing = len(case.entries) - len(case.ok_entries)
        if num_missing:
            lines.append(f"{_name(case)}: {num_missing} of {len(case.entries)} not ok")
    for name, runs in learning.collect_runs(view).items():
        for found in learning.collect_scores(runs, view.study.metrics):
            score = " ".join(formats.measured(found.score, runs[0].last.unit)).strip()
            lines.append(
                f"{_name(found.case)}, {found.score.n} runs:"
                f" {run_scores.statistic_of(found.score.n)}, {name} {score}"
            )
    return lines


def _name(case: Case, entry: Entry | None = None) -> str:
    name = f"{case.spec.backend} x{case.spec.num_replicas}"
    if entry is None or len(case.entries) == 1:
        return name
    return f"{name}, repetition {entry.spec.repetition_index},"


def _notes(view: View, columns: Sequence[str], width: int) -> Iterator[str]:
    if view.oversubscribed_sizes:
        yield "* oversubscribed: more replicas than cores"
    yield "N: replicas; [value, value]: 95 % interval"
    if "of best" in columns:
        yield "of best: efficiency against the fastest backend's baseline"
    dropped = [name for name in COLUMNS if name not in columns]
    if not view.has_several_baselines:
        dropped.remove("of best")
    if dropped:
        names = ", ".join(view.rate_unit if of == "rate" else of for of in dropped)
        yield f"{width} columns have no room for: {names}"


def print_summary(store: Store, console: rich.console.Console) -> None:
    """Prints the verdict, the table and the limits of the study."""
    view = view_store(store)

    def show(*lines: str, title: str = "", style: str = "") -> None:
        if title and lines:
            console.print(rich.text.Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(rich.text.Text(line, style=style))

    console.print()
    show(brief.judge(view).text, style="bold")
    show(*(finding.sentence for finding in verdict.findings(view)))
    console.print()
    columns = columns_that_fit(view, console)
    console.print(summary_table(view, columns))
    show(*_notes(view, columns, console.width), style="dim")
    show(*lost_time.lines(view), title="where the time went, ms per step")
    show(*quality_lines(view), title="quality runs")
    show(*(f"- {sentence}" for sentence in verdict.limits(view)), style="dim")
