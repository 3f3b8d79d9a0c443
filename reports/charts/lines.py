"""Lines of values with intervals, named at their ends: over replicas, or over time."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from reports.charts import style, svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.style import Label, Look

MOST_CHARACTERS: Final = 30
"""Of all labels of the time axis together; of more, some are left out."""
MARGIN: Final = 0.4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One value of a line."""

    x: float  # Its place.
    value: float  # Its height.
    low: float | None = None  # Lower end of its interval, or None.
    high: float | None = None  # Upper end of its interval, or None.
    is_hollow: bool = False  # Whether it is no evidence (oversubscribed).
    tip: str = ""  # What it says when it is pointed at; empty for nothing.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line."""

    series: int  # Index of its colour and marker.
    dots: tuple[Dot, ...]  # Its values, ascending by ``x``.
    singles: tuple[tuple[float, float], ...] = ()  # Single repetitions: place, value.
    label: str = ""  # Written at its end, in the margin; empty for none.
    dash: str = "-"  # As matplotlib names it.
    width: float = 1.6  # In points.
    is_joined: bool = True  # Whether the values are joined.


def draw(axes: Axes, line: Line, look: Look) -> None:
    """Draws a line: the line itself, intervals, single repetitions, markers."""
    color = look.series[line.series]
    if line.is_joined:
        axes.plot(
            [dot.x for dot in line.dots],
            [dot.value for dot in line.dots],
            color=color,
            linewidth=line.width,
            linestyle=line.dash,
            zorder=2,
        )
    bars = [
        (dot.x, dot.low, dot.high)
        for dot in line.dots
        if dot.low is not None and dot.high is not None
    ]
    axes.vlines(
        *(np.array(bars).reshape(-1, 3).T),
        color=color,
        linewidth=1.4,
        zorder=2.5,
    )
    places, values = zip(*line.singles, strict=True) if line.singles else ((), ())
    style.draw_dots(axes, places, values, color)
    for dot in line.dots:
        marker = style.draw_marker(
            axes, dot.x, dot.value, line.series, look, is_hollow=dot.is_hollow
        )
        svg.attach(marker, dot.tip)


def write_labels(
    axes: Axes, lines: Sequence[Line], look: Look, more: Sequence[Label] = ()
) -> None:
    """Writes the names of lines that have one, and ``more``, beside their ends."""
    labels = [
        style.Label(
            text=line.label,
            value=line.dots[-1].value,
            color=look.series[line.series],
        )
        for line in lines
        if line.label
    ]
    style.write_labels(axes, [*labels, *more], style.HEIGHT)


def draw_over_time(
    lines: Sequence[Line],
    *,
    dates: Sequence[str],
    slug: str,
    title: str,
    description: str,
    label: str = "studies, in order of time",
) -> Markup:
    """Draws lines over studies in order of time, or over values of a setting."""
    dots = [dot for line in lines for dot in line.dots]
    ends = [end for dot in dots for end in (dot.low, dot.high) if end is not None]

    def draw_on(axes: Axes) -> None:
        axes.set_xlim(-MARGIN, len(dates) - 1 + MARGIN)
        axes.set_ylim(style.linear([dot.value for dot in dots], ends))
        style.set_ticks(axes, "y")
        step = math.ceil(sum(map(len, dates)) / MOST_CHARACTERS)
        shown = range(0, len(dates), step)
        axes.set_xticks(shown, [style.short(dates[at]) for at in shown])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(label)
        for line in lines:
            draw(axes, line, style.PAGE)
        write_labels(axes, lines, style.PAGE)

    return svg.draw(
        (style.WIDTH, style.HEIGHT),
        draw_on,
        slug=slug,
        title=title,
        description=description,
    )
