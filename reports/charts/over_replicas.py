"""Lines with intervals: a quantity over replicas, or values over time.

Over replicas, it draws rows of the tidy frame (``results.figures.frame.points_frame``):
the callers choose which rows are one line, and what the lines of a panel share.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from matplotlib.ticker import NullLocator

from reports.charts import style, svg
from reports.charts.rows import known
from reports.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.style import Label, Look
    from reports.view import View


MOST_CHARACTERS: Final = 30
"""Of all labels of the time axis together; of more, some are left out."""
TIME_MARGIN: Final = 0.4
MOST_LINEAR: Final = 16
"""Of more replicas, efficiency is over doublings, which a linear axis would squeeze."""
DODGE: Final = 0.02
"""Lines are shifted sideways by this share of an axis, so that none is hidden."""
LEAST_TICK_GAP: Final = 0.055
"""Smallest distance of two labelled numbers of replicas, as a share of the axis."""
MOST_OF_A_GAP: Final = 0.07
"""Share of the smallest gap between two sizes that a shift may take."""
DOT_SHIFT: Final = 0.018
"""Dots are shifted sideways by this share of an axis, so none is hidden."""
MOST_DOTS: Final = 150
"""Of more repetitions of a line, only markers and intervals are drawn."""
CEILING_REACH: Final = 0.035
"""How far the line of a ceiling reaches to either side, as a share of the axis."""
DOTTED: Final = (2, 2.5)
_COLUMNS: Final = (
    *("kind", "mode", "backend", "num_replicas", "value", "low", "high", "n"),
    *("unit", "method", "is_baseline", "is_oversubscribed"),
)
_FIRST_SCREEN: Final = ("estimate", "repetition", "ceiling")


class Dot(NamedTuple):
    """One value of a line."""

    x: float  # Its place.
    value: float  # Its height.
    low: float | None = None  # Lower end of its interval, or None.
    high: float | None = None  # Upper end of its interval, or None.
    is_hollow: bool = False  # Whether it is no evidence (oversubscribed).
    tip: str = ""  # What it says when it is pointed at; empty for nothing.


class Line(NamedTuple):
    """One line."""

    series: int  # Index of its colour and marker.
    dots: tuple[Dot, ...]  # Its values, ascending by ``x``.
    singles: tuple[tuple[float, float], ...] = ()  # Single repetitions: place, value.
    label: str = ""  # Written at its end, in the margin; empty for none.
    dash: str = "-"  # As matplotlib names it.
    width: float = 1.6  # In points.
    is_joined: bool = True  # Whether the values are joined.


def draw_line(axes: Axes, line: Line, look: Look) -> None:
    """Draws a line: the line itself, intervals, single repetitions, markers."""
    color = look.series[line.series]
    if line.is_joined:
        axes.plot(
            [dot.x for dot in line.dots],
            [dot.value for dot in line.dots],
            color=color,
            linewidth=line.width,
            linestyle=line.dash,
            zorder=2,
        )
    bars = [
        (dot.x, dot.low, dot.high)
        for dot in line.dots
        if dot.low is not None and dot.high is not None
    ]
    ends = np.array(bars).reshape(-1, 3).T
    axes.vlines(*ends, color=color, linewidth=1.4, zorder=2.5)
    places, values = zip(*line.singles, strict=True) if line.singles else ((), ())
    style.draw_dots(axes, places, values, color)
    for dot in line.dots:
        spot = dot.x, dot.value, line.series
        marker = style.draw_marker(axes, *spot, look, is_hollow=dot.is_hollow)
        svg.attach(marker, dot.tip)


def write_labels(
    axes: Axes, lines: Sequence[Line], look: Look, more: Sequence[Label] = ()
) -> None:
    """Writes the names of lines that have one, and ``more``, beside their ends."""
    labels = [
        style.Label(line.label, line.dots[-1].value, look.series[line.series])
        for line in lines
        if line.label
    ]
    style.write_labels(axes, [*labels, *more], style.HEIGHT)


def draw_over_time(
    lines: Sequence[Line],
    *,
    dates: Sequence[str],
    slug: str,
    title: str,
    description: str,
    label: str = "studies, in order of time",
) -> Markup:
    """Draws lines over studies in order of time, or over values of a setting."""
    dots = [dot for line in lines for dot in line.dots]
    ends = [end for dot in dots for end in (dot.low, dot.high) if end is not None]

    def draw_on(axes: Axes) -> None:
        axes.set_xlim(-TIME_MARGIN, len(dates) - 1 + TIME_MARGIN)
        axes.set_ylim(style.linear([dot.value for dot in dots], ends))
        style.set_ticks(axes, "y")
        step = math.ceil(sum(map(len, dates)) / MOST_CHARACTERS)
        shown = range(0, len(dates), step)
        axes.set_xticks(shown, [style.short(dates[at]) for at in shown])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(label)
        for line in lines:
            draw_line(axes, line, style.PAGE)
        write_labels(axes, lines, style.PAGE)

    return svg.draw(
        (style.WIDTH, style.HEIGHT),
        draw_on,
        slug=slug,
        title=title,
        description=description,
    )


class Quantity(NamedTuple):
    """One quantity that is drawn over the number of replicas."""

    name: str  # As in the glossary.
    slug: str  # In the frame, and for ids.
    write: Callable[[float], str]  # Formats one value.

    def ideal(self, num_replicas: int, base: int, value: float) -> float:
        """Returns perfect scaling from ``value`` at a baseline of ``base`` replicas."""
        if self.slug == "efficiency":
            return 1.0
        if self.slug == "speedup":
            return float(num_replicas)
        return value * num_replicas / base


EFFICIENCY: Final = Quantity("Parallel efficiency", "efficiency", formats.percent)
SPEEDUP: Final = Quantity("Speedup", "speedup", formats.times)
THROUGHPUT: Final = Quantity("Throughput", "throughput", formats.significant)
QUANTITIES: Final = (EFFICIENCY, SPEEDUP, THROUGHPUT)


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
    curves: tuple[ReplicaCurve, ...]  # At most ``style.MOST_LINES``.
    sizes: tuple[int, ...]  # Numbers of replicas on its axis, ascending.
    y_limits: tuple[float, float]  # Of the values; shared by the panels of a quantity.
    is_log: bool = False  # Whether axes are logarithmic; of efficiency, only replicas.
    heading: str = ""  # Above the axes; empty for none.

    def of_kind(self, kind: str) -> Iterator[tuple[ReplicaCurve, Any]]:
        """Yields all rows of one kind, with their curves."""
        return ((curve, row) for curve in self.curves for row in curve.of_kind(kind))


def rows_of(frame: pd.DataFrame) -> tuple[Any, ...]:
    """Returns rows of the tidy frame as named tuples, replicas ascending."""
    ordered = frame[list(_COLUMNS)].sort_values("num_replicas", kind="stable")
    return tuple(ordered.itertuples(index=False))


def sizes_of(rows: pd.DataFrame) -> tuple[int, ...]:
    """Returns the numbers of replicas of some rows, ascending."""
    return tuple(sorted({int(n) for n in rows["num_replicas"]}))


def panels_of(frame: pd.DataFrame) -> list[list[str]]:
    """Returns the backends of each panel."""
    found, most = list(dict.fromkeys(frame["backend"])), style.MOST_LINES
    return [found[i : i + most] for i in range(0, len(found), most)]


def y_limits(
    rows: pd.DataFrame, quantity: Quantity, *, is_log: bool = False
) -> tuple[float, float]:
    """Returns limits that all panels of a quantity share; linear ones are from zero."""
    estimates = rows[rows["kind"] == "estimate"]
    anchors = [float(value) for value in rows["value"].dropna()]
    anchors += [
        quantity.ideal(n, int(row.num_replicas), row.value)
        for row in rows_of(estimates[estimates["is_baseline"]])
        for n in sizes_of(rows)
    ]
    ends = [*estimates["low"].dropna(), *estimates["high"].dropna()]
    if is_log and quantity is not EFFICIENCY:
        return style.logarithmic(anchors or [1.0], ends)
    return style.from_zero(anchors, ends)


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
    units = [unit for unit in shown["unit"] if unit] if quantity is THROUGHPUT else []
    return Panel(
        quantity=quantity,
        curves=tuple(
            ReplicaCurve(
                rows=rows_of(shown[shown["backend"] == backend]),
                name=backend,
                series=series_of(backend),
                dash=style.DASHES.get(mode, "-"),
            )
            for backend in backends
        ),
        sizes=sizes_of(frame[frame["mode"] == mode]),
        y_limits=y_limits(rows, quantity, is_log=is_log),
        is_log=is_log,
        heading=f"{mode.capitalize()} scaling{f', {units[0]}' if units else ''}",
    )


def describe_panel(panel: Panel) -> str:
    """Describes a panel in words."""

    def value_at(row: Any) -> str:
        return f"{panel.quantity.write(row.value)} at {_replicas(row)}"

    parts = []
    for curve in panel.curves:
        values = [
            value_at(row) + " (oversubscribed)" * bool(row.is_oversubscribed)
            for row in curve.of_kind("estimate")
        ]
        values += [
            f"no figure at {_replicas(row)}: it {row.method}"
            for row in curve.of_kind("crossed_out")
        ]
        if values:
            parts.append(f"{curve.name}: {', '.join(values)}")
    for curve, row in panel.of_kind("ceiling"):
        of = "" if panel.quantity is THROUGHPUT else f" of {curve.name}"
        parts.append(f"ceiling{of}, programs that never communicate: {value_at(row)}")
    return f"{'; '.join(dict.fromkeys(parts))}." if parts else "No trial is ok."


def _replicas(row: Any) -> str:
    return formats.count(int(row.num_replicas), "replica")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasAxis:
    """Places of numbers of replicas, linear or by doublings."""

    sizes: tuple[int, ...]  # Those that are labelled, ascending.
    is_log: bool  # Whether doublings are equally far apart.

    @property
    def limits(self) -> tuple[float, float]:
        """Both ends of the axis."""
        first, last = self.sizes[0], self.sizes[-1]
        if self.is_log:
            return first / 1.25, last * 1.35
        margin = 0.1 * (last - first or 1)
        return first - margin, last + margin

    def __call__(self, num_replicas: float, share: float = 0.0) -> float:
        """Returns the place of ``num_replicas``, shifted by ``share`` of the axis."""
        if self.is_log:
            reach = max(self.sizes[-1] / self.sizes[0], 2.0)
            return float(num_replicas * reach**share)
        low, high = self.limits
        gaps = [b - a for a, b in itertools.pairwise(self.sizes)]
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


def draw_on(axes: Axes, panel: Panel, look: Look) -> None:
    """Draws one panel."""
    quantity, is_efficiency = panel.quantity, panel.quantity is EFFICIENCY
    across = ReplicasAxis(
        sizes=panel.sizes,
        is_log=panel.is_log or (is_efficiency and panel.sizes[-1] > MOST_LINEAR),
    )
    across.set_on(axes)
    _hatch_oversubscribed(axes, panel, across, look)
    _draw_ideals(axes, panel, look)
    for curve, row in panel.of_kind("ceiling"):
        # Throughput together does not depend on a baseline, so on no backend.
        is_own = quantity is not THROUGHPUT
        axes.plot(
            [across(row.num_replicas, side * CEILING_REACH) for side in (-1, 1)],
            [row.value] * 2,
            color=look.series[curve.series] if is_own else look.ink,
            linewidth=1.6,
            zorder=3,
        )
    drawn = []
    for number, curve in enumerate(panel.curves):
        shift = DODGE * (number - (len(panel.curves) - 1) / 2)
        crosses = [
            across(row.num_replicas, shift) for row in curve.of_kind("crossed_out")
        ]
        axes.plot(
            crosses,
            [0.06] * len(crosses),
            transform=axes.get_xaxis_transform(),
            marker="x",
            markersize=8,
            markeredgewidth=2,
            linestyle="none",
            color=look.series[curve.series],
            zorder=4,
        )
        line = _line(panel, curve, across, shift)
        if line.dots:
            draw_line(axes, line, look)
            drawn.append(line)
    axes.set_ylim(panel.y_limits)
    if panel.is_log and not is_efficiency:
        style.set_plain_log(axes, "y")
    else:
        style.set_ticks(axes, "y")
    if is_efficiency:
        axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    if panel.heading:
        axes.set_title(panel.heading, color=look.ink, pad=10)
    ceilings = [row for curve, row in panel.of_kind("ceiling") if curve.label]
    more = []
    if ceilings:
        last = max(ceilings, key=lambda row: row.num_replicas)
        text = f"no communication\n{quantity.write(last.value)}"
        more.append(style.Label(text, last.value, look.ink))
    write_labels(axes, drawn, look, more)


def _line(
    panel: Panel, curve: ReplicaCurve, across: ReplicasAxis, shift: float
) -> Line:
    quantity = panel.quantity
    dots = tuple(
        Dot(
            # The axis begins at the baselines: all of 100 % are one point.
            x=across(row.num_replicas, 0.0 if row.is_baseline else shift),
            value=row.value,
            low=known(row.low),
            high=known(row.high),
            is_hollow=bool(row.is_oversubscribed),
            tip=svg.of_row(
                f"{curve.prefix}{row.backend}, {row.mode} scaling, {_replicas(row)}: "
                f"{quantity.slug}",
                row,
                quantity.write,
            ),
        )
        for row in curve.of_kind("estimate")
    )
    singles = tuple(
        (across(row.num_replicas, shift + DOT_SHIFT), row.value)
        for row in curve.of_kind("repetition")
    )
    label = curve.label
    if label and dots:
        label = f"{label} {quantity.write(dots[-1].value)}"
    return Line(
        series=curve.series,
        dots=dots,
        singles=singles if len(singles) <= MOST_DOTS else (),
        label=label,
        dash=curve.dash,
    )


def _draw_ideals(axes: Axes, panel: Panel, look: Look) -> None:
    """Draws perfect scaling from each baseline; equal lines once."""
    quantity = panel.quantity
    if quantity is EFFICIENCY:
        axes.axhline(1.0, color=look.muted, linewidth=1.0, dashes=DOTTED, zorder=1)
        return
    ideals = {
        tuple(quantity.ideal(n, int(row.num_replicas), row.value) for n in panel.sizes):
        # The first of equal lines gives the colour.
        curve.series
        for curve, row in reversed([*panel.of_kind("estimate")])
        if row.is_baseline
    }
    for ideal, series in reversed(ideals.items()):
        # From zero: perfect scaling is a straight line through the origin.
        axes.plot(
            panel.sizes if panel.is_log else [0, *panel.sizes],
            ideal if panel.is_log else [0.0, *ideal],
            color=look.series[series] if quantity is THROUGHPUT else look.muted,
            linewidth=1.0,
            dashes=DOTTED,
            zorder=1,
        )


def _hatch_oversubscribed(
    axes: Axes, panel: Panel, across: ReplicasAxis, look: Look
) -> None:
    rows = [row for curve in panel.curves for row in curve.rows]
    beyond = [int(row.num_replicas) for row in rows if row.is_oversubscribed]
    if beyond:
        first = min(beyond)
        within = [int(row.num_replicas) for row in rows if row.num_replicas < first]
        low = max(within, default=panel.sizes[0] / 1.4)
        left = (low * first) ** 0.5 if across.is_log else (low + first) / 2
        style.hatch(axes, left, axes.get_xlim()[1], look)


def draw(panel: Panel, *, slug: str, title: str) -> Markup:
    """Draws one panel as a figure of a page."""
    return svg.draw(
        (style.WIDTH, style.HEIGHT),
        functools.partial(draw_on, panel=panel, look=style.PAGE),
        slug=slug,
        title=title,
        description=describe_panel(panel),
    )


def _rows_of_first_screen(view: View) -> pd.DataFrame:
    rows = view.frame[view.frame["figure"] == "scaling"]
    return rows[rows["quantity"].eq("efficiency") & rows["kind"].isin(_FIRST_SCREEN)]


def curves_of_first_screen(view: View) -> list[ReplicaCurve]:
    """Returns the lines with a value beside the baseline's, in planned order."""
    rows = _rows_of_first_screen(view)
    has_several = len(view.study.backends) > 1
    found = []
    for backend in view.study.backends:
        for mode in (mode.value for mode in view.study.modes):
            part = rows[(rows["backend"] == backend) & (rows["mode"] == mode)]
            if (part["kind"].eq("estimate") & ~part["is_baseline"]).any():
                found.append(
                    ReplicaCurve(
                        rows=rows_of(part),
                        name=f"{backend}, {mode}",
                        series=series_of(backend),
                        dash=style.DASHES.get(mode, "-"),
                        label=f"{backend}\n{mode}" if has_several else mode,
                    )
                )
    return found


def draw_first_screen(view: View) -> Markup | None:
    """Draws efficiency in both scaling modes, at most seven lines; None without any."""
    shown = tuple(curves_of_first_screen(view)[: style.MOST_LINES])
    if not shown:
        return None
    panel = Panel(
        quantity=EFFICIENCY,
        curves=shown,
        sizes=tuple(sorted({int(r.num_replicas) for of in shown for r in of.rows})),
        y_limits=y_limits(_rows_of_first_screen(view), EFFICIENCY),
    )
    title = "Parallel efficiency by number of replicas"
    return draw(panel, slug="hero", title=title)
