"""A waterfall: the parts of a whole one after the other, each with its interval."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from reports import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

WIDTH = 440
ROW_HEIGHT = 36
FRAME_HEIGHT = 46
BAR_HEIGHT = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One part.

    Attributes:
      label: Name of the part; written above it, at the left.
      value: How long the bar is; negative parts go back.
      low: Lower end of the interval of the value, or None.
      high: Upper end, or None.
      text: The value in words, at the right.
      is_loss: Whether it is drawn paler, as what is lost.
      is_total: Whether it begins at 0: the whole.
    """

    label: str
    value: float
    low: float | None
    high: float | None
    text: str
    is_loss: bool = True
    is_total: bool = False


def draw(
    bars: Sequence[Bar],
    *,
    series: int,
    slug: str,
    title: str,
    description: str,
    axis_label: str,
) -> Markup:
    """Draws bars from the top; each begins where the one before it ends."""
    color = svg.SERIES[series]
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, FRAME_HEIGHT + ROW_HEIGHT * len(bars))
        end = 0.0
        reached = [0.0]
        for place, bar in enumerate(bars):
            begin = 0.0 if bar.is_total else end
            end = begin + bar.value
            _draw_bar(axes, place, begin, bar, color)
            if place + 1 < len(bars):
                axes.plot(
                    [end, end],
                    [place + BAR_HEIGHT / 2, place + 1 - BAR_HEIGHT / 2],
                    color=svg.MUTED,
                    linewidth=0.8,
                    zorder=1,
                )
            high = bar.value if bar.high is None else bar.high
            low = bar.value if bar.low is None else bar.low
            reached += [end, begin + low, begin + high]
        margin = 0.03 * (max(reached) - min(reached))
        left = min(reached)
        axes.set_xlim(left - margin if left < 0 else 0, max(reached) + margin)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.set_ylim(len(bars) - 0.45, -0.7)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(axis_label)
        return svg.inline(figure, slug=slug, title=title, description=description)


def _draw_bar(axes: Axes, place: int, begin: float, bar: Bar, color: str) -> None:
    is_back = bar.value < 0
    axes.barh(
        place,
        bar.value,
        left=begin,
        height=BAR_HEIGHT,
        facecolor=svg.PAPER if is_back else color,
        edgecolor=color,
        alpha=0.5 if bar.is_loss and not is_back else 1.0,
        linewidth=1.2 if is_back else 0.0,
        zorder=2,
    )
    if bar.low is not None and bar.high is not None:
        axes.plot(
            [begin + bar.low, begin + bar.high],
            [place, place],
            color=svg.INK,
            linewidth=1.4,
            solid_capstyle="butt",
            zorder=3,
        )
    for text, x, align in ((bar.label, 0.0, "left"), (bar.text, 1.0, "right")):
        axes.annotate(
            text,
            (x, place),
            xycoords=("axes fraction", "data"),
            xytext=(0, 12.5),
            textcoords="offset points",
            ha=align,
            va="center",
            color=svg.INK,
            bbox={"facecolor": svg.PAPER, "linewidth": 0, "pad": 0.5},
            zorder=4,
        )
