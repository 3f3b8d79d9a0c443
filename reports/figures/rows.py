"""Figures with one row per case or comparison: value, interval and raw dots."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

import pandas as pd
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from reports import formats, svg
from reports.figures import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

WIDTH = 400
ROW_HEIGHT = 36
FRAME_HEIGHT = 46
MAX_DOTS = 2_000
"""More steps than this are drawn as box plots only, to keep the page small."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a figure.

    Attributes:
      label: Name of the row; written above it.
      series: Colour and marker.
      value: Position of the marker, or None for no marker.
      low: Lower end of the interval, or None.
      high: Upper end of the interval, or None.
      dots: Raw values.
      text: The value in words, at the right end.
      is_hollow: Whether the row is no evidence (oversubscribed).
    """

    label: str
    series: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    dots: tuple[float, ...] = ()
    text: str = ""
    is_hollow: bool = False


def _prepare(axes: Axes, rows: Sequence[Row], axis_label: str) -> None:
    axes.set_ylim(len(rows) - 0.45, -0.7)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(axis_label)
    for place, row in enumerate(rows):
        for text, x, align in ((row.label, 0.0, "left"), (row.text, 1.0, "right")):
            axes.annotate(
                text,
                (x, place),
                xycoords=("axes fraction", "data"),
                xytext=(0, 12),
                textcoords="offset points",
                ha=align,
                va="center",
                color=svg.INK,
                bbox={"facecolor": svg.PAPER, "linewidth": 0, "pad": 1},
            )


def _draw_row(axes: Axes, place: float, row: Row) -> None:
    color = svg.SERIES[row.series]
    if row.low is not None and row.high is not None:
        axes.plot(
            [row.low, row.high],
            [place, place],
            color=color,
            alpha=0.35,
            linewidth=4.5,
            solid_capstyle="butt",
        )
    axes.scatter(
        row.dots,
        [place + 0.2] * len(row.dots),
        s=9,
        color=color,
        alpha=0.6,
        linewidths=0,
    )
    if row.value is not None:
        axes.plot(
            [row.value],
            [place],
            marker=svg.MARKERS[row.series],
            markersize=6,
            color=color,
            markerfacecolor=svg.PAPER if row.is_hollow else color,
            markeredgewidth=1.4,
            zorder=4,
        )


def _draw_box(
    axes: Axes, frame: pd.DataFrame, color: str, *, is_with_outliers: bool
) -> None:
    with warnings.catch_warnings():
        # Seaborn 0.13 passes "vert" to matplotlib 3.11, which expects "orientation".
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        sns.boxplot(
            data=frame,
            x="value",
            y="place",
            orient="h",
            native_scale=True,
            width=0.3,
            fill=False,
            color=color,
            linecolor=color,
            linewidth=1.2,
            showfliers=is_with_outliers,
            flierprops={"marker": ".", "markersize": 3, "markeredgewidth": 0},
            ax=axes,
        )


def draw_estimates(
    rows: Sequence[Row],
    *,
    slug: str,
    title: str,
    description: str,
    axis_label: str,
    reference: float | None = None,
    is_from_zero: bool = False,
    is_logarithmic: bool = False,
    is_percent: bool = False,
) -> Markup:
    """Draws estimates in rows; ``reference`` is a line to compare with."""
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, FRAME_HEIGHT + ROW_HEIGHT * len(rows))
        if reference is not None:
            axes.axvline(reference, color=svg.MUTED, linewidth=1.1, zorder=1)
        for place, row in enumerate(rows):
            _draw_row(axes, place, row)
        anchors = [dot for row in rows for dot in row.dots]
        anchors += [row.value for row in rows if row.value is not None]
        anchors += [] if reference is None else [reference]
        ends = [end for row in rows for end in (row.low, row.high) if end is not None]
        if is_logarithmic:
            axes.set_xlim(limits.logarithmic(anchors, ends))
            svg.set_plain_log(axes, "x")
        else:
            axes.set_xlim(limits.linear(anchors, ends))
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        if is_percent:
            axes.xaxis.set_major_formatter(
                lambda value, _: f"{100 * value:g}{formats.THIN_SPACE}%"
            )
        if is_from_zero:
            axes.set_xlim(left=0)
        _prepare(axes, rows, axis_label)
        return svg.inline(figure, slug=slug, title=title, description=description)


def draw_distributions(
    rows: Sequence[Row],
    *,
    slug: str,
    title: str,
    description: str,
    axis_label: str,
) -> Markup:
    """Draws the ``dots`` of each row as a box plot, with the dots if they are few."""
    frame = pd.DataFrame(
        [(place, dot) for place, row in enumerate(rows) for dot in row.dots],
        columns=["place", "value"],
    )
    is_few = len(frame) <= MAX_DOTS
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, FRAME_HEIGHT + ROW_HEIGHT * len(rows))
        for place, row in enumerate(rows):
            color = svg.SERIES[row.series]
            part = frame[frame["place"] == place]
            _draw_box(axes, part, color, is_with_outliers=not is_few)
            if is_few:
                axes.scatter(
                    part["value"],
                    [place + 0.27 + 0.04 * (k % 3) for k in range(len(part))],
                    s=6,
                    color=color,
                    alpha=0.45,
                    linewidths=0,
                )
        _prepare(axes, rows, axis_label)
        axes.set_ylabel("")
        return svg.inline(figure, slug=slug, title=title, description=description)
