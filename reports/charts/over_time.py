"""Throughput over studies in order of time: one line per machine class."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator

from reports.charts import limits, lines
from reports.charts.drawing import svg
from reports.charts.over_replicas import HEIGHT, WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from reports.charts.lines import Line

MOST_CHARACTERS: Final = 30
"""Of all labels of the time axis together; of more, some are left out."""
MARGIN: Final = 0.4


def draw(
    drawn: Sequence[Line],
    *,
    dates: Sequence[str],
    slug: str,
    title: str,
    description: str,
    label: str = "studies, in order of time",
) -> Markup:
    """Draws a line of values per machine class, which are not joined."""
    dots = [dot for line in drawn for dot in line.dots]
    ends = [end for dot in dots for end in (dot.low, dot.high) if end is not None]
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        axes.set_xlim(-MARGIN, len(dates) - 1 + MARGIN)
        axes.set_ylim(limits.linear([dot.value for dot in dots], ends))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        step = math.ceil(sum(map(len, dates)) / MOST_CHARACTERS)
        shown = range(0, len(dates), step)
        axes.set_xticks(shown, [svg.short(dates[at]) for at in shown])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(label)
        for line in drawn:
            lines.draw(axes, line, svg.PAGE)
        lines.write_labels(axes, drawn, HEIGHT, svg.PAGE)
        return svg.inline(figure, slug=slug, title=title, description=description)
