"""Lines of values with intervals, and their names in the margin.

Every chart of values over something draws them: replicas, studies in time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from reports.charts.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from reports.charts.drawing.svg import Look


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
    # Places and values of single repetitions.
    singles: tuple[tuple[float, float], ...] = ()
    label: str = ""  # Written at its end, in the margin; empty for none.
    dash: str = "-"  # As matplotlib names it.
    width: float = 1.6  # In points.
    is_joined: bool = True  # Whether the values are joined.


def draw(axes: Axes, line: Line, look_: Look) -> None:
    """Draws a line: the line itself, intervals, single repetitions, markers."""
    color, marker = look_.series[line.series], svg.MARKERS[line.series]
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
        [x for x, _, _ in bars],
        [low for _, low, _ in bars],
        [high for _, _, high in bars],
        color=color,
        linewidth=1.4,
        zorder=2.5,
    )
    axes.plot(
        [x for x, _ in line.singles],
        [value for _, value in line.singles],
        linestyle="none",
        marker=".",
        markersize=3,
        markeredgewidth=0,
        color=color,
        zorder=3,
    )
    for dot in line.dots:
        (marked,) = axes.plot(
            [dot.x],
            [dot.value],
            linestyle="none",
            marker=marker,
            markersize=5,
            color=color,
            markerfacecolor=look_.paper if dot.is_hollow else color,
            markeredgewidth=1.4,
            zorder=4,
        )
        svg.attach(marked, dot.tip)


def write_labels(
    axes: Axes,
    drawn: Sequence[Line],
    height: float,
    look_: Look,
    more: Sequence[svg.Label] = (),
) -> None:
    """Writes the names of lines that have one, and ``more``, beside their ends."""
    named = [
        svg.Label(
            text=line.label,
            value=line.dots[-1].value,
            color=look_.series[line.series],
        )
        for line in drawn
        if line.label
    ]
    svg.write_label(axes, [*named, *more], height)
