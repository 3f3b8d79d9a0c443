"""Quality against training time, examples or environment steps: one line per run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matplotlib import ticker

from reports import svg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 400, 250
LABEL_SIZE = 8.0
MOST_TICKS = 6
# Smallest distance between labels at the ends of lines, as a fraction of the axis.
LABEL_GAP = 0.06


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One quality run.

    Attributes:
      label: Written at the end of the line; empty for a further repetition.
      series: Colour and marker.
      spent: Positions of the points on the x axis.
      values: Quality at each point.
      lows: Lower ends of the intervals.
      highs: Upper ends of the intervals.
      is_hollow: Whether the run is no evidence (oversubscribed).
    """

    label: str
    series: int
    spent: tuple[float, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    is_hollow: bool = False


def _draw_curve(axes: Axes, curve: Curve, dash: str) -> None:
    color = svg.SERIES[curve.series]
    axes.plot(curve.spent, curve.values, color=color, linewidth=1.6, linestyle=dash)
    axes.vlines(
        curve.spent, curve.lows, curve.highs, color=color, linewidth=4.5, alpha=0.25
    )
    axes.plot(
        curve.spent,
        curve.values,
        linestyle="none",
        marker=svg.MARKERS[curve.series],
        markersize=4.5,
        color=color,
        markerfacecolor=svg.PAPER if curve.is_hollow else color,
        markeredgewidth=1.3,
    )


def _write_labels(axes: Axes, curves: Sequence[Curve]) -> None:
    """Labels lines at their ends, moved apart where labels would overlap."""
    low, high = axes.get_ylim()
    gap = LABEL_GAP * (high - low)
    place = -float("inf")
    for curve in sorted(curves, key=lambda curve: curve.values[-1]):
        if not curve.label:
            continue
        place = max(curve.values[-1], place + gap)
        axes.annotate(
            curve.label,
            (curve.spent[-1], place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=svg.MUTED,
            fontsize=LABEL_SIZE,
            annotation_clip=False,
        )


def draw(
    curves: Sequence[Curve],
    *,
    slug: str,
    title: str,
    description: str,
    x_label: str,
    write: Callable[[float], str],
) -> Markup:
    """Draws one panel.

    Args:
      curves: At least one; lines of the same colour get different dashes.
      slug: Prefix of ids, unique in the page.
      title: Accessible name.
      description: The content of the figure in words, for screen readers.
      x_label: The quantity on the x axis, with its unit.
      write: Formats a value of quality.
    """
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        dashes: dict[int, list[str]] = {}
        for curve in curves:
            labels = dashes.setdefault(curve.series, [])
            if curve.label:
                labels.append(curve.label)
            _draw_curve(axes, curve, svg.DASHES[max(len(labels) - 1, 0) % 4])
        axes.set_xlim(left=0)
        axes.set_xlabel(x_label)
        # Integers of many digits would overlap.
        axes.xaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS))
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(lambda value, _: svg.short(write(value)))
        _write_labels(axes, curves)
        return svg.inline(figure, slug=slug, title=title, description=description)
