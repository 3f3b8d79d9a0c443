"""The forest plot of a gate: the change of every case, with the margin drawn."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from reports.charts import rows
from reports.charts.drawing import svg
from reports.words import brief, formats

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from results.records.gate_record import GateRecord

_ALL: Final = "all cases"


def draw(record: GateRecord) -> Markup | None:
    """Draws the cases that have a change; None if none has.

    What lies beyond the margin is hatched: a case whose interval ends before it passes.
    """
    timed = [case for case in record.cases if case.after is None]
    shown = [case for case in timed if case.slowdown is not None]
    if not shown:
        return None
    drawn = [
        rows.Row(
            group="",
            label=case.name,
            backend=case.backend or _ALL,
            value=case.slowdown,
            low=case.low,
            high=case.high,
            text=case.verdict,
            tip=svg.of_value(
                case.name,
                case.slowdown or 0.0,
                formats.signed_percent,
                interval=(case.low, case.high),
                n=case.n,
            ),
        )
        for case in shown[: rows.MOST_ROWS]
    ]
    texts = [f"{case.name}: {brief.change(case)}, {case.verdict}" for case in shown]
    return svg.draw(
        (rows.WIDTH, rows.height_of(rows.place([row.group for row in drawn]))),
        functools.partial(_draw_on, drawn=drawn, record=record),
        slug="gate",
        title=f"Change of {record.metric} of each case",
        description="; ".join(texts) + ".",
    )


def _draw_on(axes: Axes, drawn: list[rows.Row], record: GateRecord) -> None:
    margin = record.delta
    anchors = [0.0, margin]
    scale = rows.Scale(
        label=f"{record.worse} by; hatched: the margin, {100 * margin:.3g} %, or more",
        reference=0.0,
        is_percent=True,
    )
    rows.draw_on(axes, drawn, scale, svg.PAGE)
    ends = [end for row in drawn for end in (row.low, row.high, row.value) if end]
    low, high = min([*ends, *anchors]), max([*ends, *anchors])
    room = 0.06 * (high - low)
    axes.set_xlim(low - room, high + room)
    axes.axvspan(
        margin,
        high + room,
        facecolor="none",
        edgecolor=svg.PAGE.grid,
        hatch="////",
        linewidth=0,
        zorder=0,
    )
    axes.axvline(margin, color=svg.PAGE.muted, linewidth=1.1, dashes=(2, 2.5))
