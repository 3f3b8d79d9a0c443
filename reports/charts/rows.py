"""Figures of rows: labels in a column at the left, marks, values in a column at right.

No text stands on data: the headings of groups have rows of their own, in which neither
grid nor reference line is drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator, NullLocator

from reports.charts import limits
from reports.charts.drawing import svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.drawing.svg import Look

WIDTH: Final = 310
ROW_HEIGHT: Final = 21
FRAME_HEIGHT: Final = 50
MOST_ROWS: Final = 20
"""More rows than this are for the table below a figure."""
COLUMN_GAP: Final = 6
MOST_TICKS: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a figure."""

    group: str  # Rows of one group stand together under it; empty for none.
    label: str  # Name of the row within its group; in the column at the left.
    backend: str  # For colour and marker.
    value: float | None = None  # Position of the marker, or None for no marker.
    low: float | None = None  # Lower end of the interval, or None.
    high: float | None = None  # Upper end of the interval, or None.
    dots: tuple[float, ...] = ()  # Raw values.
    text: str = ""  # The value in words; in the column at the right.
    is_hollow: bool = False  # Whether the row is no evidence (oversubscribed).
    tip: str = ""  # What the marker says when it is pointed at; empty for nothing.

    @property
    def name(self) -> str:
        """Group and label, for descriptions."""
        return ", ".join(part for part in (self.group, self.label) if part)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The axis of values.

    A logarithmic one with a reference is symmetric about it, so that half as much and
    twice as much are equally far away.
    """

    label: str  # What it shows, with the unit.
    reference: float | None = None  # Where a line to compare with is, or None.
    is_from_zero: bool = False  # Whether it begins at zero.
    is_logarithmic: bool = False  # Whether it is logarithmic.
    is_percent: bool = False  # Whether its ticks are percentages.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where rows and headings of groups lie, from 0 downwards."""

    rows: tuple[int, ...]  # Of each row.
    headings: tuple[tuple[int, str], ...]  # Of each group with a name.
    spans: tuple[tuple[int, int], ...]  # First and last row of each group.

    @property
    def number(self) -> int:
        """Rows and headings together."""
        return max(self.rows) + 1


def place(groups: Sequence[str]) -> Places:
    """Returns where the rows of these groups lie; rows of a group must be together."""
    rows: list[int] = []
    headings: list[tuple[int, str]] = []
    spans: list[tuple[int, int]] = []
    free = 0
    for group, members in itertools.groupby(groups):
        if group:
            headings.append((free, group))
            free += 1
        count = len(list(members))
        rows += range(free, free + count)
        spans.append((free, free + count - 1))
        free += count
    return Places(rows=tuple(rows), headings=tuple(headings), spans=tuple(spans))


def height_of(places: Places) -> float:
    """Returns the height in points of a figure of rows."""
    return FRAME_HEIGHT + ROW_HEIGHT * places.number


def write_columns(
    axes: Axes,
    places: Places,
    labels: Sequence[str],
    texts: Sequence[str],
    *,
    look: Look,
    reference: float | None = None,
) -> None:
    """Writes labels, values and headings; draws the grid between the headings.

    Call after the limits of the x axis are set.
    """
    axes.set_ylim(places.number - 0.4, -0.6)
    axes.set_yticks(places.rows, [svg.short(label) for label in labels])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", length=0, pad=COLUMN_GAP, labelcolor=look.ink)
    axes.grid(visible=False)
    axes.set_ylabel("")
    for row, text in zip(places.rows, texts, strict=True):
        axes.annotate(
            text,
            (1.0, row),
            xycoords=("axes fraction", "data"),
            xytext=(COLUMN_GAP, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            color=look.ink,
            annotation_clip=False,
        )
    column = max(
        (text.get_window_extent().width for text in axes.get_yticklabels()),
        default=0.0,
    )
    dots_per_point = axes.get_figure(root=True).dpi / svg.POINTS_PER_INCH  # type: ignore[union-attr]
    for row, heading in places.headings:
        axes.annotate(
            heading,
            (0.0, row),
            xycoords=("axes fraction", "data"),
            xytext=(-column / dots_per_point - COLUMN_GAP, -1),
            textcoords="offset points",
            ha="left",
            va="center",
            color=look.ink,
            weight="bold",
        )
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    for first, last in places.spans:
        top, bottom = first - 0.5, last + 0.5
        axes.vlines(ticks, top, bottom, color=look.grid, linewidth=0.8, zorder=0)
        if reference is not None:
            axes.vlines(
                [reference], top, bottom, color=look.muted, linewidth=1.1, zorder=1
            )


def draw_row(axes: Axes, at: float, row: Row, look_: Look) -> None:
    """Draws interval, dots and marker of one row."""
    color = look_.color(row.backend)
    if row.low is not None and row.high is not None:
        axes.plot(
            [row.low, row.high],
            [at, at],
            color=color,
            linewidth=1.6,
            solid_capstyle="butt",
            zorder=3,
        )
    axes.plot(
        row.dots,
        [at + 0.3] * len(row.dots),
        linestyle="none",
        marker=".",
        markersize=3.2,
        markeredgewidth=0,
        color=color,
    )
    if row.value is not None:
        (marked,) = axes.plot(
            [row.value],
            [at],
            marker=svg.marker(row.backend),
            markersize=6,
            color=color,
            markerfacecolor=look_.paper if row.is_hollow else color,
            markeredgewidth=1.4,
            zorder=4,
        )
        svg.attach(marked, row.tip)


def draw_on(axes: Axes, rows: Sequence[Row], scale: Scale, look_: Look) -> None:
    """Draws estimates in rows."""
    reference = scale.reference
    places = place([row.group for row in rows])
    for at, row in zip(places.rows, rows, strict=True):
        draw_row(axes, at, row, look_)
    anchors = [dot for row in rows for dot in row.dots]
    anchors += [row.value for row in rows if row.value is not None]
    anchors += [] if reference is None else [reference]
    ends = [end for row in rows for end in (row.low, row.high) if end is not None]
    if scale.is_logarithmic and reference is not None:
        axes.set_xlim(limits.symmetric(anchors, ends, centre=reference))
        svg.set_ratio_log(axes, "x")
    elif scale.is_logarithmic:
        axes.set_xlim(limits.logarithmic(anchors, ends))
        svg.set_plain_log(axes, "x")
    else:
        span = limits.from_zero if scale.is_from_zero else limits.linear
        axes.set_xlim(span(anchors, ends))
        axes.xaxis.set_major_locator(MaxNLocator(MOST_TICKS, steps=[1, 2, 5, 10]))
    if scale.is_percent:
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{100 * value:g}{formats.THIN_SPACE}%"
        )
    axes.set_xlabel(scale.label)
    write_columns(
        axes,
        places,
        [row.label for row in rows],
        [row.text for row in rows],
        look=look_,
        reference=reference,
    )


def draw_estimates(
    rows: Sequence[Row], scale: Scale, *, slug: str, title: str, description: str
) -> Markup:
    """Draws estimates in rows as a figure of the page."""
    height = height_of(place([row.group for row in rows]))
    draw = functools.partial(draw_on, rows=rows, scale=scale, look_=svg.PAGE)
    return svg.draw(
        (WIDTH, height), draw, slug=slug, title=title, description=description
    )
