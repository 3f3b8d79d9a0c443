"""Names of lines in a margin beside the axes, moved apart where they would overlap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from reports.charts.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

LINE_HEIGHT: Final = 11.5
"""Of a line of a label, in points."""
LONGEST: Final = 24
"""Of a line of a label, in characters: the longest name of a backend, and some."""
FRAME: Final = 48
"""What ticks, their labels and the margins take of a figure's height, at most."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """The name of one line."""

    text: str  # One or several lines.
    value: float  # Where the line ends, in data coordinates.
    color: str  # Of the line.


def spread(
    places: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Moves the centres of labels apart, so that none overlaps, and all are within."""
    order = sorted(range(len(places)), key=lambda k: (places[k], k))
    moved = list(places)
    least = low
    for index in order:
        moved[index] = max(moved[index], least + heights[index] / 2)
        least = moved[index] + heights[index] / 2
    most = high
    for index in reversed(order):
        moved[index] = min(moved[index], most - heights[index] / 2)
        most = moved[index] - heights[index] / 2
    return moved


def write(
    axes: Axes, found: Sequence[Label], height: float, *, has_lines: bool = True
) -> None:
    """Writes labels at the right of the axes, each with a line to where it belongs."""
    low, high = axes.get_ylim()
    # Of the axes, which always shows it: only the text is placed beside them.
    middle = sum(axes.get_xlim()) / 2, (low + high) / 2
    # The height of the axes is not known before the layout; it is never less.
    per_point = (high - low) / (height - FRAME)
    heights = [
        LINE_HEIGHT * (1 + label.text.count("\n")) * per_point for label in found
    ]
    places = spread([label.value for label in found], heights, low, high)
    for label, place in zip(found, places, strict=True):
        if has_lines:
            axes.plot(
                [1.0, 1.035],
                [label.value, place],
                transform=axes.get_yaxis_transform(),
                color=label.color,
                linewidth=0.9,
                clip_on=False,
                zorder=2,
            )
        axes.annotate(
            "\n".join(map(_short, label.text.split("\n"))),
            middle,
            xytext=(1.05, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            ha="left",
            color=label.color,
            fontsize=svg.FONT_SIZE,
            linespacing=1.1,
        )


def _short(line: str) -> str:
    """Cuts what would leave no room for the axes; records can have long names."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}{svg.CUT}"
