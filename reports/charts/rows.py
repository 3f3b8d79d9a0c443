"""Charts of rows: labels in a column at the left, marks, values in a column at right.

No text stands on data: the headings of groups have rows of their own, in which neither
grid nor reference line is drawn. Notebook and page share the rows of the tidy frame.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import NullLocator

from reports.charts import style, svg
from reports.view import series_of
from reports.words import brief, formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.style import Look
    from results.records.models import GateRecord
    from results.study.cases import Case

ROW_HEIGHT: Final = 21
FRAME_HEIGHT: Final = 50
MOST_ROWS: Final = 20
"""More rows than this are for the table below a figure."""
COLUMN_GAP: Final = 6
MOST_TICKS: Final = 4
BAR_HEIGHT: Final = 0.5
PART_LABELS: Final = {
    "alone": "one replica alone",
    "ideal": "ideal scaling",
    "exposed_communication": "communication",
}
"""Names of parts that are too long for a column, or not words; others are their own."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a figure."""

    label: str  # Name of the row within its group; in the column at the left.
    backend: str  # For colour and marker.
    group: str = ""  # Rows of one group stand together under it; empty for none.
    value: float | None = None  # Position of the marker, or None for no marker.
    low: float | None = None  # Lower end of the interval, or None.
    high: float | None = None  # Upper end of the interval, or None.
    dots: tuple[float, ...] = ()  # Raw values.
    text: str = ""  # The value in words; in the column at the right.
    is_hollow: bool = False  # Whether the row is no evidence (oversubscribed).
    tip: str = ""  # What the marker says when it is pointed at; empty for nothing.
    size: int = 0  # Replicas: of too many rows, those of most replicas are drawn.

    @property
    def name(self) -> str:
        """Group and label, for descriptions."""
        return ", ".join(part for part in (self.group, self.label) if part)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of its interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The axis of values; a logarithmic one with a reference is symmetric about it."""

    label: str  # What it shows, with the unit.
    reference: float | None = None  # Where a line to compare with is, or None.
    is_from_zero: bool = False  # Whether it begins at zero.
    is_logarithmic: bool = False  # Whether it is logarithmic.
    is_percent: bool = False  # Whether its ticks are percentages.


RATIOS: Final = Scale(
    label="ratio of throughput (1: equally fast)", reference=1.0, is_logarithmic=True
)


def select(frame: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Returns the rows of one figure."""
    found = frame[frame["figure"] == figure]
    if found.empty:
        present = ", ".join(dict.fromkeys(frame["figure"])) or "nothing"
        raise ValueError(
            f"the frame has no rows of figure {figure!r}, only of {present}: pass "
            "results.figures.frame.points_frame(study) of a study that measured it"
        )
    return found


def case_label(num_replicas: int, per_replica_batch_size: int) -> str:
    """Returns replicas times batch per replica, as short as rows need it."""
    return f"{num_replicas} {formats.TIMES} {per_replica_batch_size}"


def of_case(case: Case, **more: Any) -> Row:
    """Returns a row in the group of the backend of a case."""
    spec = case.spec
    return Row(
        group=spec.backend,
        label=case_label(spec.num_replicas, spec.per_replica_batch_size),
        backend=spec.backend,
        is_hollow=case.is_oversubscribed,
        size=spec.num_replicas,
        **more,
    )


def most_replicas(rows: Sequence[Row]) -> list[Row]:
    """Returns at most twenty rows, those of most replicas, in their own order."""
    ranked = sorted(
        range(len(rows)), key=lambda i: (rows[i].is_hollow, -rows[i].size, i)
    )
    return [rows[i] for i in sorted(ranked[:MOST_ROWS])]


def ratios(frame: pd.DataFrame) -> list[Row]:
    """Returns the rows of a forest plot, a group per pair of backends."""
    found = select(frame, "forest").sort_values("num_replicas", kind="stable")
    rows = []
    drawn: Any
    for _, drawn in found.groupby(["backend", "other_backend"], sort=False):
        for row in drawn.itertuples():
            group = f"{row.backend} / {row.other_backend}"
            replicas = formats.count(int(row.num_replicas), "replica")
            name = f"{group}, {row.mode} scaling, {replicas}: ratio of throughput"
            modes = "" if " and " in row.mode else f", {row.mode}"
            rows.append(
                Row(
                    group=group,
                    label=f"N = {row.num_replicas}{modes}",
                    backend=row.backend,
                    value=row.value,
                    low=known(row.low),
                    high=known(row.high),
                    text=formats.times(row.value),
                    is_hollow=bool(row.is_oversubscribed),
                    tip=svg.of_row(name, row, formats.times),
                    size=int(row.num_replicas),
                )
            )
    return most_replicas(rows)


def parts(frame: pd.DataFrame, backend: str, num_replicas: int) -> list[Row]:
    """Returns the parts of a step of one case in ms, the whole last."""
    found = select(frame, "waterfall")
    found = found[found["backend"].eq(backend) & found["num_replicas"].eq(num_replicas)]
    # A case of another batch size is another case.
    first = found["per_replica_batch_size"].iloc[0]
    return [
        Row(
            label=PART_LABELS.get(row.quantity, row.quantity),
            backend=backend,
            value=1000 * row.value,
            low=known(1000 * row.low),
            high=known(1000 * row.high),
            text=formats.significant(1000 * row.value),
        )
        for row in found[found["per_replica_batch_size"] == first].itertuples()
    ]


def known(value: float) -> float | None:
    """Returns None for a value that a frame does not have."""
    return value if value == value else None  # noqa: PLR0124  # not a number


def place(rows: Sequence[Row]) -> tuple[list[int], dict[int, str]]:
    """Returns where rows and headings of groups lie, from 0 downwards."""
    places: list[int] = []
    headings: dict[int, str] = {}
    for group, members in itertools.groupby(rows, key=lambda row: row.group):
        if group:
            headings[len(places) + len(headings)] = group
        places += [len(places) + len(headings) + k for k, _ in enumerate(members)]
    return places, headings


def size_of(rows: Sequence[Row]) -> tuple[float, float]:
    """Returns width and height in points of a figure of rows."""
    return style.WIDTH, FRAME_HEIGHT + ROW_HEIGHT * (place(rows)[0][-1] + 1)


def write_columns(
    axes: Axes, rows: Sequence[Row], look: Look, reference: float | None = None
) -> None:
    """Writes labels, values and headings; draws the grid between the headings.

    Call after the limits of the x axis are set.
    """
    places, headings = place(rows)
    number = places[-1] + 1
    axes.set_ylim(number - 0.4, -0.6)
    axes.set_yticks(places, [style.short(row.label) for row in rows])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", length=0, pad=COLUMN_GAP, labelcolor=look.ink)
    axes.grid(visible=False)
    axes.set_ylabel("")
    write = functools.partial(
        axes.annotate,
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="left",
        va="center",
        color=look.ink,
    )
    for at, row in zip(places, rows, strict=True):
        write(row.text, (1.0, at), xytext=(COLUMN_GAP, 0), annotation_clip=False)
    widths = [text.get_window_extent().width for text in axes.get_yticklabels()]
    dots_per_point = axes.get_figure(root=True).dpi / style.POINTS_PER_INCH  # type: ignore[union-attr]
    left = -max(widths, default=0.0) / dots_per_point - COLUMN_GAP
    for at, heading in headings.items():
        write(heading, (0.0, at), xytext=(left, -1), weight="bold")
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    for before, after in itertools.pairwise([*(headings or [-1]), number]):
        span = before + 0.5, after - 0.5
        axes.vlines(ticks, *span, color=look.grid, linewidth=0.8, zorder=0)
        if reference is not None:
            axes.vlines([reference], *span, color=look.muted, linewidth=1.1, zorder=1)


def draw_on(axes: Axes, rows: Sequence[Row], scale: Scale, look: Look) -> None:
    """Draws estimates in rows: interval, dots and marker of each."""
    reference = scale.reference
    for at, row in zip(place(rows)[0], rows, strict=True):
        color = look.color(row.backend)
        if row.interval:
            axes.hlines(at, *row.interval, color=color, linewidth=1.6, zorder=3)
        style.draw_dots(axes, row.dots, [at + 0.3] * len(row.dots), color)
        if row.value is not None:
            spot = row.value, at, series_of(row.backend)
            marker = style.draw_marker(axes, *spot, look, is_hollow=row.is_hollow)
            svg.attach(marker, row.tip)
    anchors = [dot for row in rows for dot in row.dots]
    anchors += [row.value for row in rows if row.value is not None]
    anchors += [] if reference is None else [reference]
    ends = [end for row in rows for end in (row.low, row.high) if end is not None]
    if scale.is_logarithmic and reference is not None:
        axes.set_xlim(style.symmetric(anchors, ends, centre=reference))
        style.set_ratio_log(axes, "x")
    elif scale.is_logarithmic:
        axes.set_xlim(style.logarithmic(anchors, ends))
        style.set_plain_log(axes, "x")
    else:
        span = style.from_zero if scale.is_from_zero else style.linear
        axes.set_xlim(span(anchors, ends))
        style.set_ticks(axes, "x", MOST_TICKS)
    if scale.is_percent:
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{100 * value:g}{formats.THIN_SPACE}%"
        )
    axes.set_xlabel(scale.label)
    write_columns(axes, rows, look, reference)


def draw_estimates(
    rows: Sequence[Row], scale: Scale, *, slug: str, title: str, description: str = ""
) -> Markup:
    """Draws estimates in rows as a figure of the page."""
    values = "; ".join(f"{row.name}: {row.text}" for row in rows)
    return svg.draw(
        size_of(rows),
        functools.partial(draw_on, rows=rows, scale=scale, look=style.PAGE),
        slug=slug,
        title=title,
        description=description or f"{values}.",
    )


def draw_parts(axes: Axes, rows: Sequence[Row], look: Look) -> None:
    """Draws a waterfall: each part begins where the one before it ends, but the last.

    The last is the whole.
    """
    end = 0.0
    reached = [0.0]
    for at, row in enumerate(rows):
        is_whole = at == len(rows) - 1
        value = row.value or 0.0
        begin = 0.0 if is_whole else end
        end = begin + value
        color, is_back = look.color(row.backend), value < 0
        (bar,) = axes.barh(
            at,
            value,
            left=begin,
            height=BAR_HEIGHT,
            facecolor=look.paper if is_back else color,
            edgecolor=color,
            linewidth=1.2 if is_back else 0.0,
            zorder=2,
        )
        svg.attach(bar, row.tip)
        reached.append(end)
        if row.interval:
            ends = begin + row.interval[0], begin + row.interval[1]
            reached += ends
            # On paper around it, the line is visible inside the bar and beyond it.
            for width, shade in ((3.4, look.paper), (1.4, look.ink)):
                axes.hlines(at, *ends, color=shade, linewidth=width, zorder=3)
        if not is_whole:
            span = at + BAR_HEIGHT / 2, at + 1 - BAR_HEIGHT / 2
            axes.vlines(end, *span, color=look.muted, linewidth=0.8, zorder=1)
    left, right = min(reached), max(reached)
    margin = 0.04 * (right - left)
    axes.set_xlim(left - margin if left < 0 else 0, right + margin)
    style.set_ticks(axes, "x", MOST_TICKS)
    axes.set_xlabel("ms per step")
    write_columns(axes, rows, look)


def draw_gate(record: GateRecord) -> Markup | None:
    """Draws the change of each case, and hatches what lies beyond the margin."""
    shown = [
        case
        for case in record.cases
        if case.after is None and case.slowdown is not None
    ]
    if not shown:
        return None
    rows = [
        Row(
            label=case.name,
            backend=case.backend or "all cases",
            value=case.slowdown,
            low=case.low,
            high=case.high,
            text=case.verdict,
            tip=svg.of_value(
                case.name,
                case.slowdown or 0.0,
                formats.signed_percent,
                interval=(case.low, case.high),
                n=case.n,
            ),
        )
        for case in shown[:MOST_ROWS]
    ]
    margin, look = record.delta, style.PAGE
    label = f"{record.worse} by; hatched: the margin, {100 * margin:.3g} %, or more"

    def draw(axes: Axes) -> None:
        draw_on(axes, rows, Scale(label=label, reference=0.0, is_percent=True), look)
        ends = [end for row in rows for end in (row.low, row.high, row.value) if end]
        low, high = min([*ends, 0.0, margin]), max([*ends, 0.0, margin])
        room = 0.06 * (high - low)
        axes.set_xlim(low - room, high + room)
        style.hatch(axes, margin, high + room, look)
        axes.axvline(margin, color=look.muted, linewidth=1.1, dashes=(2, 2.5))

    texts = [f"{case.name}: {brief.change(case)}, {case.verdict}" for case in shown]
    return svg.draw(
        size_of(rows),
        draw,
        slug="gate",
        title=f"Change of {record.metric} of each case",
        description="; ".join(texts) + ".",
    )
