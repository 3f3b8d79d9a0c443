"""A waterfall: the parts of a whole one after the other, each with its interval."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator

from reports.charts import rows
from reports.charts.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from reports.charts.drawing.svg import Look

BAR_HEIGHT: Final = 0.5
MARGIN: Final = 0.04
LABELS: Final = {
    "alone": "one replica alone",
    "ideal": "ideal scaling",
    "exposed_communication": "communication",
}
"""Names of parts that are too long for a column, or not words; others are their own."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One part."""

    label: str  # Name of the part; in the column at the left.
    value: float  # How long the bar is; negative parts go back.
    low: float | None  # Lower end of the interval of the value, or None.
    high: float | None  # Upper end, or None.
    text: str  # The value in words, in the column at the right.
    is_total: bool = False  # Whether it begins at 0: the whole.
    tip: str = ""  # What the bar says when it is pointed at; empty for nothing.


def draw_on(
    axes: Axes, bars: Sequence[Bar], *, backend: str, axis_label: str, look_: Look
) -> None:
    """Draws bars from the top; each begins where the one before it ends."""
    color = look_.color(backend)
    end = 0.0
    reached = [0.0]
    for place, bar in enumerate(bars):
        begin = 0.0 if bar.is_total else end
        end = begin + bar.value
        _draw_bar(axes, place, begin, bar, color, look_)
        if place + 1 < len(bars):
            axes.plot(
                [end, end],
                [place + BAR_HEIGHT / 2, place + 1 - BAR_HEIGHT / 2],
                color=look_.muted,
                linewidth=0.8,
                zorder=1,
            )
        high = bar.value if bar.high is None else bar.high
        low = bar.value if bar.low is None else bar.low
        reached += [end, begin + low, begin + high]
    margin = MARGIN * (max(reached) - min(reached))
    left = min(reached)
    axes.set_xlim(left - margin if left < 0 else 0, max(reached) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(rows.MOST_TICKS, steps=[1, 2, 5, 10]))
    axes.set_xlabel(axis_label)
    rows.write_columns(
        axes,
        rows.place([""] * len(bars)),
        [bar.label for bar in bars],
        [bar.text for bar in bars],
        look=look_,
    )


def size_of(bars: Sequence[Bar]) -> tuple[float, float]:
    """Returns width and height in points of a figure of these bars."""
    return rows.WIDTH, rows.height_of(rows.place([""] * len(bars)))


def _draw_bar(
    axes: Axes, place: int, begin: float, bar: Bar, color: str, look_: Look
) -> None:
    is_back = bar.value < 0
    (drawn,) = axes.barh(
        place,
        bar.value,
        left=begin,
        height=BAR_HEIGHT,
        facecolor=look_.paper if is_back else color,
        edgecolor=color,
        linewidth=1.2 if is_back else 0.0,
        zorder=2,
    )
    svg.attach(drawn, bar.tip)
    if bar.low is not None and bar.high is not None:
        # On paper around it, the line is visible inside the bar and beyond it.
        for width, shade in ((3.4, look_.paper), (1.4, look_.ink)):
            axes.plot(
                [begin + bar.low, begin + bar.high],
                [place, place],
                color=shade,
                linewidth=width,
                solid_capstyle="butt",
                zorder=3,
            )
