"""One step of a case by device; of a pipeline, its schedule as planned and measured."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Final

from reports.charts import rows
from reports.charts import timeline as chart
from reports.charts.drawing import look, svg
from reports.page import page
from reports.words import formats
from results.study import timeline as figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from reports.view.view import View
    from results.records.timeline_record import Span, Timeline
    from results.study.cases import Case
    from results.study.timeline import Task

TITLE = "Timeline of a step"
SLUG = "timelines"

MOST_FIGURES: Final = 4
PLANNED: Final = "schedule, tasks of one length"
MEASURED: Final = "measured"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShownTimeline:
    """One timeline as it is shown.

    Attributes:
      case: Its case.
      timeline: What was recorded.
      figure: The drawing.
      pipeline: Of a pipeline, how long devices are idle; empty without one.
      num_left_out: Rows that the figure has no room for.
    """

    case: Case
    timeline: Timeline
    figure: Markup
    pipeline: str
    num_left_out: int


def render(view: View) -> Markup:
    """Renders a figure per timeline; nothing where none was kept."""
    by_id = {case.entries[0].case_id: case for case in view.study.cases}
    shown = [
        _show(by_id[timeline.case_id], timeline, f"timeline-{number}")
        for number, timeline in enumerate(view.study.timelines)
        if timeline.case_id in by_id
    ]
    if not shown:
        return page.NOTHING
    return page.render(
        "timelines",
        view=view,
        shown=shown[:MOST_FIGURES],
        num_left_out=len(shown[MOST_FIGURES:]),
    )


def _show(case: Case, timeline: Timeline, slug: str) -> ShownTimeline:
    pipelines = figures.tasks(timeline)
    devices = [
        *(row for of in [*pipelines.values()][:1] for row in _planned(of)),
        *_measured(timeline, has_plan=bool(pipelines)),
    ]
    drawn = devices[: rows.MOST_ROWS]
    pipeline = _idle(pipelines)
    return ShownTimeline(
        case=case,
        timeline=timeline,
        figure=svg.draw(
            chart.size_of(drawn),
            functools.partial(
                chart.draw_on,
                devices=drawn,
                backend=case.spec.backend,
                axis_label="ms since the begin of the step",
                look_=look.PAGE,
            ),
            slug=slug,
            title=f"Timeline of a step of {case.label}",
            description="; ".join(
                f"{row.group + ', ' if row.group else ''}{row.label}: {row.text} busy"
                for row in drawn
            )
            + ".",
        ),
        pipeline=pipeline,
        num_left_out=len(devices) - len(drawn),
    )


def _idle(pipelines: dict[str, list[Task]]) -> str:
    """Says how long devices wait, as measured and with tasks of one length."""
    texts = []
    for replica, of in pipelines.items():
        bubble = figures.idle_share(figures.planned(of))
        num_stages = len({task.stage for task in of})
        num_parts = len({task.microbatch for task in of})
        texts.append(
            f"{replica}: {num_stages} stages,"
            f" {formats.count(num_parts, 'micro-batch', 'micro-batches')}; devices have"
            f" no task for {100 * figures.idle_share(of):.1f} % of the time between the"
            f" first and the last task, with tasks of one length {100 * bubble:.1f} %"
        )
    return "; ".join(texts)


def _planned(of: Sequence[Task]) -> list[chart.Device]:
    plan = figures.planned(of)
    return [
        chart.Device(
            group=PLANNED,
            label=f"stage {stage}",
            text=_percent(own, plan),
            bars=[_bar_of(task, "") for task in own],
        )
        for stage in sorted({task.stage for task in plan})
        for own in [[task for task in plan if task.stage == stage]]
    ]


def _percent(own: Sequence[Task], whole: Sequence[Task]) -> str:
    """The part of the pipeline's time in which a device has a task."""
    length = max(t.end_sec for t in whole) - min(t.begin_sec for t in whole)
    share = sum(task.length_sec for task in own) / length if length > 0 else 0.0
    return formats.percent(share)


def _measured(timeline: Timeline, *, has_plan: bool) -> list[chart.Device]:
    by_row: list[list[Span]] = [[] for _ in timeline.rows]
    for span in timeline.spans:
        by_row[span.row].append(span)
    return [
        chart.Device(
            group=MEASURED if has_plan else "",
            label=label,
            text=formats.percent(_busy(spans) / timeline.step_sec),
            bars=[_bar(span) for span in spans],
        )
        for label, spans in zip(timeline.rows, by_row, strict=True)
        if spans
    ]


def _busy(spans: Sequence[Span]) -> float:
    return figures.covered_sec(
        (span.begin_sec, span.end_sec) for span in spans if span.kind != "wait"
    )


def _bar_of(task: Task, when: str) -> chart.Block:
    return chart.Block(
        kind="forward" if task.is_forward else "backward",
        begin=1000 * task.begin_sec,
        end=1000 * task.end_sec,
        tip=f"stage {task.stage}, {task.name}{when}",
    )


def _bar(span: Span) -> chart.Block:
    begin, end = 1000 * span.begin_sec, 1000 * span.end_sec
    when = f": {begin:.2f} to {end:.2f} ms"
    task = figures.task_of(span)
    if task is not None:
        return _bar_of(task, when)
    is_backward = span.name.endswith(("backward", "/sum"))  # sums of gradients
    compute = "backward" if is_backward else "forward"
    return chart.Block(
        kind=compute if span.kind == "compute" else span.kind,
        begin=begin,
        end=max(begin, end),
        tip=f"{span.name}{when}",
    )
