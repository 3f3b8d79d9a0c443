"""Time to first step and peak memory per case."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from reports.charts import rows, svg
from reports.page import page
from reports.words import formats
from results.figures import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from reports.view.view import View
    from results.figures.table import Cell
    from results.study.cases import Case

TITLE = "Time to first step and memory"
SLUG = "startup"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """One quantity: its figure, in the unit of its axis."""

    quantity: str
    slug: str
    name: str
    unit: str
    scale: float
    write: Callable[[float], str]


_PANELS: Final = (
    _Scale(
        quantity="time_to_first_step",
        slug="first-step",
        name="Time to first step",
        unit="s",
        scale=1.0,
        write=formats.seconds,
    ),
    _Scale(
        quantity="peak_memory",
        slug="memory",
        name="Peak memory",
        unit="GiB",
        scale=float(formats.GIBIBYTE),
        write=formats.gibibytes,
    ),
)


def _row(case: Case, cell: Cell, panel: _Scale) -> rows.Row:
    whole = cell.estimate
    assert whole is not None
    estimate = whole.scaled(1 / panel.scale)
    return rows.of_case(
        case,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        dots=tuple(value / panel.scale for value in cell.values),
        text=panel.write(estimate.value * panel.scale),
        tip=svg.of_value(
            rows.of_case(case).name,
            whole.value,
            panel.write,
            interval=(whole.low, whole.high),
            n=whole.n,
        ),
    )


def _draw(panel: _Scale, found: list[tuple[Case, Cell]]) -> Markup:
    return rows.draw_estimates(
        rows.most_replicas([_row(case, cell, panel) for case, cell in found]),
        rows.Scale(label=f"{panel.name.lower()}, {panel.unit}", is_from_zero=True),
        slug=panel.slug,
        title=f"{panel.name} per case",
    )


def render(view: View) -> Markup:
    """Renders both quantities and one table."""
    listed: list[tuple[Case, list[Cell]]] = []
    for case in view.measured_cases:
        cells = [table.of_trials(case, panel.quantity) for panel in _PANELS]
        if any(cell.estimate for cell in cells):
            listed.append((case, cells))
    if not listed:
        return page.NOTHING
    columns = [
        [(case, cells[index]) for case, cells in listed if cells[index].estimate]
        for index in range(len(_PANELS))
    ]
    return page.render(
        "startup",
        view=view,
        panels=[
            _draw(panel, column)
            for panel, column in zip(_PANELS, columns, strict=True)
            if column
        ],
        table=[(case, *(cell.estimate for cell in cells)) for case, cells in listed],
        num_left_out=max(0, len(listed) - rows.MOST_ROWS),
        is_first_step_missing=any(cells[0].estimate is None for _, cells in listed),
    )
