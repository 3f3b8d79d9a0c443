"""Performance profiles: the fraction of runs that reached a level, a line per case."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from reports.charts.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from results.statistics.run_scores import Profile

WIDTH, HEIGHT = 310, 200
LEGEND_LINE = 13
MOST_LINES = 7


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProfileLine:
    """The runs of one case."""

    label: str  # Case, for the legend.
    backend: str  # Colour.
    number: int  # How many lines of the same colour are before it.
    profile: Profile  # Their performance profile.


def draw(
    lines: Sequence[ProfileLine],
    *,
    slug: str,
    title: str,
    description: str,
    x_label: str,
    write: Callable[[float], str],
) -> Markup:
    """Draws one panel, with pointwise bands where there are enough runs."""
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT + LEGEND_LINE * len(lines))
        for line in lines:
            color, found = svg.PAGE.color(line.backend), line.profile
            if found.lows:
                axes.fill_between(
                    found.thresholds,
                    found.lows,
                    found.highs,
                    step="pre",
                    color=color,
                    alpha=0.15,
                    linewidth=0,
                )
            axes.step(
                found.thresholds,
                found.shares,
                where="pre",
                color=color,
                linewidth=svg.width_of_line(line.number),
                label=line.label,
            )
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(x_label)
        axes.set_ylabel("fraction of runs")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda value, _: svg.short(write(value)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        # Below the axes: inside, it would stand on lines.
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0, -0.27),
            frameon=False,
            borderaxespad=0,
            labelspacing=0.25,
        )
        return svg.inline(figure, slug=slug, title=title, description=description)
