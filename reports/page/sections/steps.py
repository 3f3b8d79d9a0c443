"""Step times: every recorded step, with warmup shown separately."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

from reports.charts import rows, style, svg
from reports.charts import steps as charts
from reports.page import page
from reports.words import cells, formats

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view.view import View
    from results.study.cases import Case

TITLE = "Step times"
SLUG = "steps"

MOST_WARMUP_DOTS = 30
"""Of more warmup steps of a case than this, the shortest and the longest are drawn."""


def measured_steps(case: Case) -> tuple[float, ...]:
    """Returns every measured step of every process of the ok trials, in seconds."""
    return tuple(
        step
        for entry in case.ok_entries
        for rank in entry.result.ranks
        for step in rank.step_time_sec
    )


def warmup_steps(case: Case) -> tuple[float, ...]:
    """Returns every warmup step of every process of the ok trials, in seconds."""
    return tuple(
        step
        for entry in case.ok_entries
        for rank in entry.result.ranks
        for step in rank.warmup_step_time_sec
    )


def quartiles(values: tuple[float, ...]) -> tuple[float, float, float]:
    """Returns lower quartile, median and upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def _describe(cases: list[tuple[Case, tuple[float, ...]]]) -> str:
    parts = []
    for case, values in cases:
        low, median, high = quartiles(values)
        parts.append(
            f"{case.label}: median {formats.seconds(median)}, middle half "
            f"{formats.seconds(low)} to {formats.seconds(high)}, {len(values)} steps"
        )
    return "; ".join(parts) + "."


def _warmup_row(case: Case, steps: tuple[float, ...]) -> rows.Row:
    """All warmup steps as dots, and the mean first step as the marker."""
    firsts = [
        rank.warmup_step_time_sec[0]
        for entry in case.ok_entries
        for rank in entry.result.ranks
        if rank.warmup_step_time_sec
    ]
    first = statistics.geometric_mean(firsts)
    name = f"{rows.of_case(case).name}: first step of a process"
    return rows.of_case(
        case,
        value=first,
        dots=steps if len(steps) <= MOST_WARMUP_DOTS else (min(steps), max(steps)),
        text=formats.seconds(first),
        tip=svg.of_value(name, first, formats.seconds, n=len(firsts)),
    )


def render(view: View) -> Markup:
    """Renders the two distributions and their table."""
    if not view.study.cases:
        return page.NOTHING
    cases = [(c, measured_steps(c), warmup_steps(c)) for c in view.measured_cases]
    measured = [(case, steps) for case, steps, _ in cases if steps]
    warmup = [(case, steps) for case, _, steps in cases if steps]
    panels = []
    if measured:
        boxes = charts.cases_of(view.frame, "measure")
        panels.append(
            svg.draw(
                rows.size_of(boxes),
                functools.partial(
                    charts.draw_boxes,
                    items=boxes,
                    axis_label="time of one measured step, ms",
                    look=style.PAGE,
                ),
                slug="steps-measured",
                title="Measured step times per case",
                description=_describe(measured),
            )
        )
    if warmup:
        drawn = rows.most_replicas([_warmup_row(case, steps) for case, steps in warmup])
        panels.append(
            rows.draw_estimates(
                drawn,
                rows.Scale(
                    label="time of one warmup step, s (logarithmic)",
                    is_logarithmic=True,
                ),
                slug="steps-warmup",
                title="Warmup step times per case",
                description="; ".join(f"{row.name}: first {row.text}" for row in drawn)
                + ".",
            )
        )
    if not panels:
        return page.NOTHING
    table = [(case, steps, quartiles(steps)) for case, steps in measured]
    return page.render(
        "steps",
        view=view,
        panels=panels,
        table=table,
        num_left_out=max(0, len(measured) - rows.MOST_ROWS),
        csv=cells.of_steps(view.frame),
    )
