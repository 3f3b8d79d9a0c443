"""A quantity over replicas: the chart of the first screen, the section and the site.

It draws rows of the tidy frame (``results.figures.points.points_frame``): the callers
choose which rows are one line, and what the lines of a panel share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd
from matplotlib.ticker import MaxNLocator

from reports.charts import lines
from reports.charts.drawing import labels, look, replicas_axis, svg
from reports.charts.drawing.replicas_axis import ReplicasAxis
from reports.charts.quantities import EFFICIENCY, THROUGHPUT
from reports.charts.replica_panel import describe, tip_of
from reports.words import formats

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.drawing.look import Look
    from reports.charts.lines import Line
    from reports.charts.replica_panel import Panel, ReplicaCurve

WIDTH, HEIGHT = 310, 225
DOT_SHIFT: Final = 0.018
"""Dots are shifted sideways by this share of an axis, so none is hidden."""
MOST_DOTS: Final = 150
"""Of more repetitions of a line, only markers and intervals are drawn."""
CEILING_REACH: Final = 0.035
"""How far the line of a ceiling reaches to either side, as a share of the axis."""


def draw_on(axes: Axes, panel: Panel, look_: Look) -> None:
    """Draws one panel."""
    quantity = panel.quantity
    across = ReplicasAxis(
        sizes=panel.sizes,
        is_log=panel.is_log
        or (quantity is EFFICIENCY and panel.sizes[-1] > replicas_axis.MOST_LINEAR),
        is_from_zero=panel.is_from_zero,
    )
    across.set_on(axes)
    _hatch_oversubscribed(axes, panel, across, look_)
    _draw_ideals(axes, panel, look_)
    drawn = []
    for number, curve in enumerate(panel.curves):
        shift = replicas_axis.DODGE * (number - (len(panel.curves) - 1) / 2)
        _draw_marks(axes, panel, curve, across, shift, look_)
        line = _line(panel, curve, across, shift)
        if line.dots:
            lines.draw(axes, line, look_)
            drawn.append(line)
    axes.set_ylim(panel.y_limits)
    if panel.has_log_values:
        svg.set_plain_log(axes, "y")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if quantity is EFFICIENCY:
        axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    if panel.heading:
        axes.set_title(panel.heading, color=look_.ink, pad=10)
    lines.write_labels(axes, drawn, HEIGHT, look_, _labels_of_ceilings(panel, look_))


def _line(
    panel: Panel, curve: ReplicaCurve, across: ReplicasAxis, shift: float
) -> Line:
    """Returns the line of a curve, shifted by a share of the axis."""
    dots = tuple(
        lines.Dot(
            # Where the axis begins at them, all baselines of 100 % are one point.
            x=across(
                row.num_replicas,
                shift if panel.is_from_zero or not row.is_baseline else 0.0,
            ),
            value=row.value,
            low=None if pd.isna(row.low) else row.low,
            high=None if pd.isna(row.high) else row.high,
            is_hollow=bool(row.is_oversubscribed),
            tip=tip_of(row, panel.quantity, curve.prefix),
        )
        for row in curve.of_kind("estimate")
    )
    singles = tuple(
        (across(row.num_replicas, shift + DOT_SHIFT), row.value)
        for row in curve.of_kind("repetition")
    )
    label = curve.label
    if label and dots:
        label = f"{label} {panel.quantity.write(dots[-1].value)}"
    return lines.Line(
        series=curve.series,
        dots=dots,
        singles=singles if len(singles) <= MOST_DOTS else (),
        label=label,
        dash=curve.dash,
    )


def _draw_ideals(axes: Axes, panel: Panel, look_: Look) -> None:
    """Draws perfect scaling from each baseline; equal lines once."""
    quantity = panel.quantity
    if quantity is EFFICIENCY:
        axes.axhline(1.0, color=look_.muted, linewidth=1.0, dashes=(2, 2.5), zorder=1)
        return
    seen: set[tuple[float, ...]] = set()
    for curve in panel.curves:
        for row in curve.of_kind("estimate"):
            base = int(row.num_replicas)
            ideal = tuple(quantity.ideal(n, base, row.value) for n in panel.sizes)
            if not row.is_baseline or ideal in seen:
                continue
            seen.add(ideal)
            # From zero: perfect scaling is a straight line through the origin.
            is_own = quantity is THROUGHPUT
            axes.plot(
                panel.sizes if panel.is_log else [0, *panel.sizes],
                ideal if panel.is_log else [0.0, *ideal],
                color=look_.series[curve.series] if is_own else look_.muted,
                linewidth=1.0,
                dashes=(2, 2.5),
                zorder=1,
            )


def _draw_marks(
    axes: Axes,
    panel: Panel,
    curve: ReplicaCurve,
    across: ReplicasAxis,
    shift: float,
    look_: Look,
) -> None:
    """Draws ceilings, and marks cases that are crossed out at the panel's foot."""
    color = look_.series[curve.series]
    for row in curve.of_kind("ceiling"):
        # Throughput together does not depend on a baseline, so on no backend.
        axes.plot(
            [across(row.num_replicas, side * CEILING_REACH) for side in (-1, 1)],
            [row.value] * 2,
            color=look_.ink if panel.quantity is THROUGHPUT else color,
            linewidth=1.6,
            zorder=3,
        )
    places = [across(row.num_replicas, shift) for row in curve.of_kind("crossed_out")]
    axes.plot(
        places,
        [0.06] * len(places),
        transform=axes.get_xaxis_transform(),
        marker="x",
        markersize=8,
        markeredgewidth=2,
        linestyle="none",
        color=color,
        zorder=4,
    )


def _labels_of_ceilings(panel: Panel, look_: Look) -> list[labels.Label]:
    """Returns the name of the last ceiling where lines have names too."""
    named = [curve for curve in panel.curves if curve.label]
    found = [row for curve in named for row in curve.of_kind("ceiling")]
    if not found:
        return []
    last = max(found, key=lambda row: row.num_replicas)
    text = f"no communication\n{panel.quantity.write(last.value)}"
    return [labels.Label(text=text, value=last.value, color=look_.ink)]


def _hatch_oversubscribed(
    axes: Axes, panel: Panel, across: ReplicasAxis, look_: Look
) -> None:
    rows = [row for curve in panel.curves for row in curve.rows]
    beyond = [int(row.num_replicas) for row in rows if row.is_oversubscribed]
    if not beyond:
        return
    first = min(beyond)
    within = [int(row.num_replicas) for row in rows if row.num_replicas < first]
    low = max(within) if within else panel.sizes[0] / 1.4
    left = (low * first) ** 0.5 if across.is_log else (low + first) / 2
    axes.axvspan(
        left,
        axes.get_xlim()[1],
        facecolor="none",
        edgecolor=look_.grid,
        hatch="////",
        linewidth=0,
        zorder=0,
    )


def draw(panel: Panel, *, slug: str, title: str) -> Markup:
    """Draws one panel as a figure of a page."""
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        draw_on(axes, panel, look.PAGE)
        return svg.inline(figure, slug=slug, title=title, description=describe(panel))
