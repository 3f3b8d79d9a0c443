"""The summary for a terminal: the verdict in words and one table."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import rich.box
import rich.console
import rich.table
import rich.text

from reports.page.sections import learning, lost_time
from reports.view.view import View, view_store
from reports.words import brief, formats, ratio_table, verdict
from results.figures import scaling
from results.statistics import run_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from results.figures.scaling import Point
    from results.records.models import QualityMetric
    from results.statistics.estimates import Estimate
    from results.store.study_store import Store
    from results.study.cases import Case, Entry


def _interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    """Returns the interval on a separate line, so that the table fits 80 columns."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"\n{formats.interval(estimate.low, estimate.high, write)}"


COLUMNS = (
    "backend",
    "mode",
    "N",
    "rate",
    "speedup",
    "efficiency",
    "of best",
    "ok",
)
DROPPED_FIRST = ("of best", "ok", "rate", "speedup")
"""Columns that a narrow terminal lacks, in this order; a number is never cut."""
_LEFT = {"backend", "mode"}


def _cells(point: Point) -> dict[str, str]:
    figures = scaling.ratios(point)
    cells = {
        "backend": point.backend,
        "mode": point.mode.value,
        "N": f"{point.num_replicas}{' *' if point.is_oversubscribed else ''}",
        "ok": f"{len(point.trial_ids)}/{len(point.case.entries)}",
    }
    for column, (quantity, write, write_end) in _FIGURES.items():
        estimate = figures[quantity].estimate
        cells[column] = formats.ABSENT
        if estimate is not None:
            cells[column] = write(estimate.value) + _interval(estimate, write_end)
    if figures["speedup"].fixed is not None:
        cells["speedup"] = "baseline"
    if point.is_crossed_out:
        cells["rate"] = "not equivalent"
    return cells


def _percent_digits(value: float) -> str:
    return f"{100 * value:.0f}"


_FIGURES: Final = {
    "rate": ("throughput", formats.significant, formats.significant),
    "speedup": ("speedup", formats.times, formats.ratio),
    "efficiency": ("efficiency", formats.percent, _percent_digits),
    "of best": ("efficiency_of_best", formats.percent, _percent_digits),
}
"""Columns of figures: quantity, and what writes its value and the ends."""


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
        if previous is not None and previous.mode is not point.mode:
            table.add_section()
        # Text, not str: a name in brackets must not be parsed as markup.
        cells = _cells(point)
        table.add_row(*(rich.text.Text(cells[name]) for name in columns))
        previous = point
    return table


def columns_that_fit(view: View, console: rich.console.Console) -> tuple[str, ...]:
    """Returns the columns of the summary table that a terminal has room for."""
    columns = [
        name for name in COLUMNS if name != "of best" or view.has_several_baselines
    ]
    make_table = functools.partial(summary_table, view)
    return verdict.columns_that_fit(columns, DROPPED_FIRST, make_table, console)


def quality_lines(view: View) -> list[str]:
    """Returns the result of each quality run, and the aggregate of each case."""
    lines = []
    for case in view.study.quality_runs:
        for entry in case.ok_entries:
            point = entry.result.curve[-1]
            reached = ", ".join(
                f"{metric.name} {' '.join(formats.measured(metric))} "
                f"(n = {metric.num_examples}{_over(metric, view)})"
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
    return lines + _seed_lines(view)


def _over(metric: QualityMetric, view: View) -> str:
    """Says what the interval is over: not runs with other seeds."""
    if not metric.low < metric.high:
        return ""
    is_images = view.study.example_unit == "images"
    return f", interval over test {'images' if is_images else 'examples'}"


def _seed_lines(view: View) -> list[str]:
    """Returns the robust mean of every case with several runs."""
    return [
        f"{_name(found.case)}, {found.score.n} runs:"
        f" {run_scores.statistic_of(found.score.n)}, {name} "
        + " ".join(formats.run_score(found.score, runs[0].points[-1][1].unit)).strip()
        for name, runs in ratio_table.collect_quality_runs(view).items()
        for found in learning.collect_scores(runs, view.study.metrics)
    ]


def _name(case: Case, entry: Entry | None = None) -> str:
    name = f"{case.spec.backend} x{case.spec.num_replicas}"
    if entry is None or len(case.entries) == 1:
        return name
    return f"{name}, repetition {entry.spec.repetition_index},"


def _notes(view: View, columns: Sequence[str], width: int) -> Iterator[str]:
    """Yields what the table needs to be understood."""
    if view.is_oversubscription_present:
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
    judged = verdict.judge(view)
    console.print()
    console.print(rich.text.Text(brief.judge(view).text, style="bold"))
    if judged.findings:
        sentences = [judged.headline, *(of.sentence for of in judged.others)]
        console.print(rich.text.Text("\n".join(sentences)))
    console.print()
    columns = columns_that_fit(view, console)
    console.print(summary_table(view, columns))
    for note in _notes(view, columns, console.width):
        console.print(rich.text.Text(note, style="dim"))
    for number, line in enumerate(lost_time.lines(view)):
        if not number:
            title = "\nwhere the time went, ms per step"
            console.print(rich.text.Text(title, style="bold"))
        console.print(rich.text.Text(line))
    for number, line in enumerate(quality_lines(view)):
        if not number:
            console.print(rich.text.Text("\nquality runs", style="bold"))
        console.print(rich.text.Text(line))
    for sentence in judged.unknowns:
        console.print(rich.text.Text(f"- {sentence}", style="dim"))
