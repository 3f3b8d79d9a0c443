"""Time to first step and peak memory per case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.charts import rows, rows_of, tips
from reports.page import page
from reports.words import formats
from results.figures import scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from reports.view.view import View
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry

TITLE = "Time to first step and memory"
SLUG = "startup"


def _row(
    case: Case,
    whole: Estimate,
    metric: Callable[[Entry], float],
    write: Callable[[float], str],
    scale: float,
) -> rows.Row:
    estimate = whole.scaled(1 / scale)
    return rows.Row(
        group=case.spec.backend,
        label=rows_of.label_of(case),
        backend=case.spec.backend,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        dots=tuple(x / scale for x in scaling.values(case, metric).values()),
        text=write(estimate.value * scale),
        is_hollow=case.is_oversubscribed,
        tip=tips.of_value(
            f"{case.spec.backend}, {rows_of.label_of(case)}",
            whole.value,
            write,
            interval=(whole.low, whole.high),
            n=whole.n,
        ),
    )


def render(view: View) -> Markup:
    """Renders both quantities and one table."""
    if not view.study.cases:
        return page.NOTHING
    quantities = (
        ("first-step", "Time to first step", "s", scaling.time_to_first_step_of, 1.0,
         formats.seconds),
        ("memory", "Peak memory", "GiB", scaling.peak_memory_of,
         float(formats.GIBIBYTE), formats.gibibytes),
    )  # fmt: skip
    panels = []
    table: dict[str, dict[str, Estimate]] = {}
    for slug, name, unit, metric, scale, write in quantities:
        drawn: list[rows.Row] = []
        sizes: list[int] = []
        for case in view.measured_cases:
            values = list(scaling.values(case, metric).values())
            if min(values) <= 0:
                # Zero means "could not be read"; a mean including it would be wrong.
                continue
            estimate = scaling.estimate(case, metric, unit=unit)
            assert estimate is not None
            table.setdefault(case.case_id, {})[slug] = estimate
            sizes.append(case.spec.num_replicas)
            drawn.append(_row(case, estimate, metric, write, scale))
        if drawn:
            drawn = rows_of.most_replicas(drawn, sizes)
            panels.append(
                rows.draw_estimates(
                    drawn,
                    slug=slug,
                    title=f"{name} per case",
                    description="; ".join(f"{row.name}: {row.text}" for row in drawn)
                    + ".",
                    axis_label=f"{name.lower()}, {unit}",
                    is_from_zero=True,
                )
            )
    if not panels:
        return page.NOTHING
    rows_of_table = [
        (case, found.get("first-step"), found.get("memory"))
        for case in view.measured_cases
        if (found := table.get(case.case_id))
    ]
    return page.render(
        "startup",
        view=view,
        panels=panels,
        table=rows_of_table,
        num_left_out=max(0, len(rows_of_table) - rows.MOST_ROWS),
        is_first_step_missing=any(first is None for _, first, _ in rows_of_table),
    )
