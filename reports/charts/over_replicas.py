"""A quantity over replicas: the chart of the first screen, the section and the site.

It draws rows of the tidy frame (``results.figures.points.points_frame``): the callers
choose which rows are one line, and what the lines of a panel share.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from matplotlib.ticker import MaxNLocator, NullLocator

from reports.charts import limits, lines
from reports.charts.drawing import svg
from reports.charts.quantities import EFFICIENCY, THROUGHPUT
from reports.view.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.drawing.svg import Look
    from reports.charts.lines import Line
    from reports.charts.quantities import Quantity


MOST_LINES: Final = 7
"""More lines than this are drawn in several panels, or left out."""
_COLUMNS: Final = (
    *("kind", "mode", "backend", "num_replicas", "value", "low", "high", "n"),
    *("unit", "method", "is_baseline", "is_oversubscribed"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaCurve:
    """Rows that are one line, and how it is drawn."""

    # Of one quantity, scaling mode and backend, as ``rows_of`` returns them.
    rows: tuple[Any, ...]
    name: str  # In the description of the figure.
    series: int  # Index of its colour and marker.
    dash: str = "-"  # As matplotlib names it.
    label: str = ""  # Written at its end, with its last value; empty for none.
    prefix: str = ""  # What its tips begin with, such as the study.

    def of_kind(self, kind: str) -> Iterator[Any]:
        """Yields its rows of one kind."""
        return (row for row in self.rows if row.kind == kind)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes."""

    quantity: Quantity  # What is drawn.
    curves: tuple[ReplicaCurve, ...]  # At most ``MOST_LINES``.
    sizes: tuple[int, ...]  # Numbers of replicas on its axis, ascending.
    y_limits: tuple[float, float]  # Of the values; shared by the panels of a quantity.
    # Whether axes are logarithmic; of efficiency, only that of replicas.
    is_log: bool = False
    # Whether the axis of replicas begins at zero, not at the fewest.
    is_from_zero: bool = True
    heading: str = ""  # Above the axes; empty for none.

    @property
    def has_log_values(self) -> bool:
        """Whether the axis of values is logarithmic."""
        return self.is_log and self.quantity is not EFFICIENCY


def rows_of(frame: pd.DataFrame) -> tuple[Any, ...]:
    """Returns rows of the tidy frame as named tuples, replicas ascending."""
    ordered = frame[list(_COLUMNS)].sort_values("num_replicas", kind="stable")
    return tuple(ordered.itertuples(index=False))


def sizes_of(rows: pd.DataFrame) -> tuple[int, ...]:
    """Returns the numbers of replicas of some rows, ascending."""
    return tuple(sorted({int(n) for n in rows["num_replicas"]}))


def panels_of(frame: pd.DataFrame) -> list[list[str]]:
    """Returns the backends of each panel: at most ``MOST_LINES`` lines each."""
    found = list(dict.fromkeys(frame["backend"]))
    return [found[i : i + MOST_LINES] for i in range(0, len(found), MOST_LINES)]


def y_limits(
    rows: pd.DataFrame, quantity: Quantity, *, is_log: bool = False
) -> tuple[float, float]:
    """Returns limits that all panels of a quantity share; linear ones are from zero."""
    sizes = sizes_of(rows)
    anchors = [float(value) for value in rows["value"].dropna()]
    baselines = rows[(rows["kind"] == "estimate") & rows["is_baseline"]]
    anchors += [
        quantity.ideal(n, int(row.num_replicas), row.value)
        for row in rows_of(baselines)
        for n in sizes
    ]
    estimates = rows[rows["kind"] == "estimate"]
    ends = [*estimates["low"].dropna(), *estimates["high"].dropna()]
    if is_log and quantity is not EFFICIENCY:
        return limits.logarithmic(anchors or [1.0], ends)
    return limits.from_zero(anchors, ends)


def panel_of_mode(
    frame: pd.DataFrame,
    quantity: Quantity,
    mode: str,
    *,
    backends: Sequence[str],
    is_log: bool = False,
) -> Panel:
    """Returns the panel of a scaling mode: a line per backend."""
    rows = frame[frame["quantity"] == quantity.slug]
    shown = rows[rows["mode"] == mode]
    units = [unit for unit in shown["unit"] if unit]
    has_unit = quantity is THROUGHPUT and units
    return Panel(
        quantity=quantity,
        curves=tuple(
            ReplicaCurve(
                rows=rows_of(shown[shown["backend"] == backend]),
                name=backend,
                series=series_of(backend),
                dash=svg.dash_of_line(mode),
            )
            for backend in backends
        ),
        sizes=sizes_of(frame[frame["mode"] == mode]),
        y_limits=y_limits(rows, quantity, is_log=is_log),
        is_log=is_log,
        is_from_zero=False,
        heading=f"{mode.capitalize()} scaling{f', {units[0]}' if has_unit else ''}",
    )


def tip_of(row: Any, quantity: Quantity, prefix: str = "") -> str:
    """Returns what an estimate of the frame says when it is pointed at."""
    replicas = formats.count(int(row.num_replicas), "replica")
    return svg.of_row(
        f"{prefix}{row.backend}, {row.mode} scaling, {replicas}: {quantity.slug}",
        row,
        quantity.write,
    )


def describe_panel(panel: Panel) -> str:
    """Describes a panel in words."""
    write = panel.quantity.write
    parts = []
    ceilings: dict[str, None] = {}
    for curve in panel.curves:
        values = [
            f"{write(row.value)} at {formats.count(int(row.num_replicas), 'replica')}"
            + (" (oversubscribed)" if row.is_oversubscribed else "")
            for row in curve.of_kind("estimate")
        ]
        values += [
            f"crossed out at {formats.count(int(row.num_replicas), 'replica')}, since "
            f"it {row.method}"
            for row in curve.of_kind("crossed_out")
        ]
        if values:
            parts.append(f"{curve.name}: {', '.join(values)}")
        of = "" if panel.quantity is THROUGHPUT else f" of {curve.name}"
        for row in curve.of_kind("ceiling"):
            replicas = formats.count(int(row.num_replicas), "replica")
            ceilings[
                f"ceiling{of}, programs that never communicate: {write(row.value)} at "
                f"{replicas}"
            ] = None
    parts += ceilings
    return f"{'; '.join(parts)}." if parts else "No trial is ok."


MOST_LINEAR: Final = 16
"""Of more replicas, efficiency is over doublings, which a linear axis would squeeze."""
DODGE: Final = 0.02
"""Lines are shifted sideways by this share of an axis, so that none is hidden."""
LEAST_TICK_GAP: Final = 0.055
"""Smallest distance of two labelled numbers of replicas, as a share of the axis."""
MOST_OF_A_GAP: Final = 0.07
"""Share of the smallest gap between two sizes that a shift may take."""
MARGIN: Final = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasAxis:
    """Places of numbers of replicas, linear or by doublings."""

    sizes: tuple[int, ...]  # Those that are labelled, ascending.
    is_log: bool  # Whether doublings are equally far apart.
    is_from_zero: bool  # Whether a linear axis begins at zero, not at the fewest.

    @property
    def limits(self) -> tuple[float, float]:
        """Both ends of the axis."""
        first, last = self.sizes[0], self.sizes[-1]
        if self.is_log:
            return first / 1.25, last * 1.35
        if self.is_from_zero:
            return 0.0, last * 1.06 + 0.25
        margin = MARGIN * (last - first or 1)
        return first - margin, last + margin

    def __call__(self, num_replicas: float, share: float = 0.0) -> float:
        """Returns the place of ``num_replicas``, shifted by ``share`` of the axis."""
        if self.is_log:
            reach = max(self.sizes[-1] / self.sizes[0], 2.0)
            return float(num_replicas * reach**share)
        low, high = self.limits
        sizes = (0, *self.sizes) if self.is_from_zero else self.sizes
        gaps = [b - a for a, b in itertools.pairwise(sizes)]
        whole = min([high - low, *(gap * MOST_OF_A_GAP / DODGE for gap in gaps)])
        return float(num_replicas + share * whole)

    def set_on(self, axes: Axes) -> None:
        """Sets limits, ticks and label; of ticks too close, the larger stays."""
        if self.is_log:
            axes.set_xscale("log", base=2)
        low, high = self.limits
        axes.set_xlim(low, high)
        ticks: list[int] = []
        for size in reversed(self.sizes):
            gap = (ticks[-1] - size) / (high - low) if ticks else 1.0
            if self.is_log or gap >= LEAST_TICK_GAP:
                ticks.append(size)
        axes.set_xticks(ticks, [str(size) for size in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("replicas")


WIDTH, HEIGHT = 310, 225
DOT_SHIFT: Final = 0.018
"""Dots are shifted sideways by this share of an axis, so none is hidden."""
MOST_DOTS: Final = 150
"""Of more repetitions of a line, only markers and intervals are drawn."""
CEILING_REACH: Final = 0.035
"""How far the line of a ceiling reaches to either side, as a share of the axis."""


def draw_on(axes: Axes, panel: Panel, look_: Look) -> None:
    """Draws one panel."""
    quantity = panel.quantity
    across = ReplicasAxis(
        sizes=panel.sizes,
        is_log=panel.is_log
        or (quantity is EFFICIENCY and panel.sizes[-1] > MOST_LINEAR),
        is_from_zero=panel.is_from_zero,
    )
    across.set_on(axes)
    _hatch_oversubscribed(axes, panel, across, look_)
    _draw_ideals(axes, panel, look_)
    drawn = []
    for number, curve in enumerate(panel.curves):
        shift = DODGE * (number - (len(panel.curves) - 1) / 2)
        _draw_marks(axes, panel, curve, across, shift, look_)
        line = _line(panel, curve, across, shift)
        if line.dots:
            lines.draw(axes, line, look_)
            drawn.append(line)
    axes.set_ylim(panel.y_limits)
    if panel.has_log_values:
        svg.set_plain_log(axes, "y")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if quantity is EFFICIENCY:
        axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    if panel.heading:
        axes.set_title(panel.heading, color=look_.ink, pad=10)
    lines.write_labels(axes, drawn, HEIGHT, look_, _labels_of_ceilings(panel, look_))


def _line(
    panel: Panel, curve: ReplicaCurve, across: ReplicasAxis, shift: float
) -> Line:
    """Returns the line of a curve, shifted by a share of the axis."""
    dots = tuple(
        lines.Dot(
            # Where the axis begins at them, all baselines of 100 % are one point.
            x=across(
                row.num_replicas,
                shift if panel.is_from_zero or not row.is_baseline else 0.0,
            ),
            value=row.value,
            low=None if pd.isna(row.low) else row.low,
            high=None if pd.isna(row.high) else row.high,
            is_hollow=bool(row.is_oversubscribed),
            tip=tip_of(row, panel.quantity, curve.prefix),
        )
        for row in curve.of_kind("estimate")
    )
    singles = tuple(
        (across(row.num_replicas, shift + DOT_SHIFT), row.value)
        for row in curve.of_kind("repetition")
    )
    label = curve.label
    if label and dots:
        label = f"{label} {panel.quantity.write(dots[-1].value)}"
    return lines.Line(
        series=curve.series,
        dots=dots,
        singles=singles if len(singles) <= MOST_DOTS else (),
        label=label,
        dash=curve.dash,
    )


def _draw_ideals(axes: Axes, panel: Panel, look_: Look) -> None:
    """Draws perfect scaling from each baseline; equal lines once."""
    quantity = panel.quantity
    if quantity is EFFICIENCY:
        axes.axhline(1.0, color=look_.muted, linewidth=1.0, dashes=(2, 2.5), zorder=1)
        return
    seen: set[tuple[float, ...]] = set()
    for curve in panel.curves:
        for row in curve.of_kind("estimate"):
            base = int(row.num_replicas)
            ideal = tuple(quantity.ideal(n, base, row.value) for n in panel.sizes)
            if not row.is_baseline or ideal in seen:
                continue
            seen.add(ideal)
            # From zero: perfect scaling is a straight line through the origin.
            is_own = quantity is THROUGHPUT
            axes.plot(
                panel.sizes if panel.is_log else [0, *panel.sizes],
                ideal if panel.is_log else [0.0, *ideal],
                color=look_.series[curve.series] if is_own else look_.muted,
                linewidth=1.0,
                dashes=(2, 2.5),
                zorder=1,
            )


def _draw_marks(
    axes: Axes,
    panel: Panel,
    curve: ReplicaCurve,
    across: ReplicasAxis,
    shift: float,
    look_: Look,
) -> None:
    """Draws ceilings, and marks cases that are crossed out at the panel's foot."""
    color = look_.series[curve.series]
    for row in curve.of_kind("ceiling"):
        # Throughput together does not depend on a baseline, so on no backend.
        axes.plot(
            [across(row.num_replicas, side * CEILING_REACH) for side in (-1, 1)],
            [row.value] * 2,
            color=look_.ink if panel.quantity is THROUGHPUT else color,
            linewidth=1.6,
            zorder=3,
        )
    places = [across(row.num_replicas, shift) for row in curve.of_kind("crossed_out")]
    axes.plot(
        places,
        [0.06] * len(places),
        transform=axes.get_xaxis_transform(),
        marker="x",
        markersize=8,
        markeredgewidth=2,
        linestyle="none",
        color=color,
        zorder=4,
    )


def _labels_of_ceilings(panel: Panel, look_: Look) -> list[svg.Label]:
    """Returns the name of the last ceiling where lines have names too."""
    named = [curve for curve in panel.curves if curve.label]
    found = [row for curve in named for row in curve.of_kind("ceiling")]
    if not found:
        return []
    last = max(found, key=lambda row: row.num_replicas)
    text = f"no communication\n{panel.quantity.write(last.value)}"
    return [svg.Label(text=text, value=last.value, color=look_.ink)]


def _hatch_oversubscribed(
    axes: Axes, panel: Panel, across: ReplicasAxis, look_: Look
) -> None:
    rows = [row for curve in panel.curves for row in curve.rows]
    beyond = [int(row.num_replicas) for row in rows if row.is_oversubscribed]
    if not beyond:
        return
    first = min(beyond)
    within = [int(row.num_replicas) for row in rows if row.num_replicas < first]
    low = max(within) if within else panel.sizes[0] / 1.4
    left = (low * first) ** 0.5 if across.is_log else (low + first) / 2
    axes.axvspan(
        left,
        axes.get_xlim()[1],
        facecolor="none",
        edgecolor=look_.grid,
        hatch="////",
        linewidth=0,
        zorder=0,
    )


def draw(panel: Panel, *, slug: str, title: str) -> Markup:
    """Draws one panel as a figure of a page."""
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        draw_on(axes, panel, svg.PAGE)
        return svg.inline(
            figure, slug=slug, title=title, description=describe_panel(panel)
        )
