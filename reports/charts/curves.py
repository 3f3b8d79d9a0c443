"""Lines: a quantity over replicas, and quality over training.

They are rows of the tidy frame (``results.figures.frame.points_frame``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from matplotlib import ticker

from reports.charts import style, svg
from reports.charts.rows import known, select
from reports.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.style import Look
    from reports.view import View


DODGE: Final = 0.02
"""Lines are shifted sideways by this share of an axis, so that none is hidden."""
DOT_SHIFT: Final = 0.018
"""So are the dots of single repetitions."""
MOST_DOTS: Final = 150
"""Of more repetitions of a line, only markers and intervals are drawn."""
CEILING_REACH: Final = 0.035
"""How far the line of a ceiling reaches to either side, as a share of the axis."""
DOTTED: Final = (2, 2.5)
_COLUMNS: Final = (
    *("kind", "mode", "backend", "num_replicas", "value", "low", "high", "n"),
    *("unit", "method", "is_baseline", "is_oversubscribed"),
)


class Quantity(NamedTuple):
    slug: str  # In the frame, and for ids.
    write: Callable[[float], str]  # Formats one value.

    def ideal(self, num_replicas: int, base: int, value: float) -> float:
        """Returns perfect scaling from ``value`` at a baseline of ``base`` replicas."""
        if self.slug == "efficiency":
            return 1.0
        if self.slug == "speedup":
            return float(num_replicas)
        return value * num_replicas / base


EFFICIENCY: Final = Quantity("efficiency", formats.percent)
SPEEDUP: Final = Quantity("speedup", formats.times)
THROUGHPUT: Final = Quantity("throughput", formats.significant)
QUANTITIES: Final = (EFFICIENCY, SPEEDUP, THROUGHPUT)


class Curve(NamedTuple):
    """Rows of one quantity, scaling mode and backend, which are one line."""

    rows: tuple[Any, ...]  # Replicas ascending.
    name: str  # In the description of the figure.
    series: int  # Index of its colour and marker.
    dash: str = "-"  # As matplotlib names it.
    label: str = ""  # Written at its end, with its last value; empty for none.

    def points_of_kind(self, kind: str) -> Iterator[Any]:
        return (row for row in self.rows if row.kind == kind)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    quantity: Quantity  # What is drawn.
    curves: tuple[Curve, ...]  # At most ``style.MOST_LINES``.
    y_limits: tuple[float, float]  # Of the values; shared by the modes of a quantity.
    is_log: bool = False  # Whether axes are logarithmic; of efficiency, only replicas.
    heading: str = ""  # Above the axes; empty for none.

    @property
    def sizes(self) -> list[int]:
        return sorted(
            {int(row.num_replicas) for curve in self.curves for row in curve.rows}
        )

    @property
    def has_doublings(self) -> bool:
        return self.is_log or self.quantity is EFFICIENCY

    def points_of_kind(self, kind: str) -> Iterator[tuple[Curve, Any]]:
        return (
            (curve, row) for curve in self.curves for row in curve.points_of_kind(kind)
        )

    def across(self, num_replicas: float, share: float = 0.0) -> float:
        """Returns the place of a number of replicas, shifted by a share of the axis."""
        first, last = self.sizes[0], self.sizes[-1]
        if self.has_doublings:
            return float(num_replicas * max(last / first, 2.0) ** share)
        return float(num_replicas + share * (last - first or 1))


def _curve(frame: pd.DataFrame, backend: str, name: str, **more: Any) -> Curve:
    ordered = frame[list(_COLUMNS)].sort_values("num_replicas", kind="stable")
    rows = tuple(ordered.itertuples(index=False))
    return Curve(rows, name, series_of(backend), **more)


def _y_limits(
    rows: pd.DataFrame, quantity: Quantity, *, is_log: bool = False
) -> tuple[float, float]:
    """Returns limits that both modes of a quantity share; linear ones are from zero."""
    estimates = rows[rows["kind"] == "estimate"]
    anchors = [float(value) for value in rows["value"].dropna()]
    anchors += [
        quantity.ideal(int(size), int(base), value)
        for base, value in estimates.loc[
            estimates["is_baseline"], ["num_replicas", "value"]
        ].itertuples(index=False)
        for size in rows["num_replicas"].unique()
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
    rows = frame[frame["quantity"] == quantity.slug]
    shown = rows[rows["mode"] == mode]
    units = [unit for unit in shown["unit"] if unit] if quantity is THROUGHPUT else []
    return Panel(
        quantity=quantity,
        curves=tuple(
            _curve(
                shown[shown["backend"] == backend],
                backend,
                backend,
                dash=style.DASHES.get(mode, "-"),
            )
            for backend in backends
        ),
        y_limits=_y_limits(rows, quantity, is_log=is_log),
        is_log=is_log,
        heading=f"{mode.capitalize()} scaling{f', {units[0]}' if units else ''}",
    )


def _described(panel: Panel) -> str:
    def value_at(row: Any) -> str:
        return f"{panel.quantity.write(row.value)} at {_replicas(row)}"

    parts = []
    for curve in panel.curves:
        values = [
            value_at(row) + " (oversubscribed)" * bool(row.is_oversubscribed)
            for row in curve.points_of_kind("estimate")
        ]
        values += [
            f"no figure at {_replicas(row)}: it {row.method}"
            for row in curve.points_of_kind("crossed_out")
        ]
        parts.append(f"{curve.name}: {', '.join(values)}")
    for curve, row in panel.points_of_kind("ceiling"):
        name = f"ceiling of {curve.name}, programs that never communicate"
        parts.append(f"{name}: {value_at(row)}")
    return f"{'; '.join(dict.fromkeys(parts))}."


def _replicas(row: Any) -> str:
    return formats.count(int(row.num_replicas), "replica")


def draw_on(axes: Axes, panel: Panel, look: Look) -> None:
    quantity, sizes, across = panel.quantity, panel.sizes, panel.across
    if panel.has_doublings:
        axes.set_xscale("log", base=2)
    axes.set_xlim(across(sizes[0], -0.1), across(sizes[-1], 0.1))
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("replicas")
    _hatch_oversubscribed(axes, panel, look)
    _draw_ideals(axes, panel, look)
    labels = []
    for curve, row in panel.points_of_kind("ceiling"):
        # Throughput together does not depend on a baseline, so on no backend.
        is_own = quantity is not THROUGHPUT
        axes.plot(
            [across(row.num_replicas, side * CEILING_REACH) for side in (-1, 1)],
            [row.value] * 2,
            color=look.series[curve.series] if is_own else look.ink,
            linewidth=1.6,
            zorder=3,
        )
        if curve.label:
            text = f"no communication\n{quantity.write(row.value)}"
            labels = [style.Label(text, row.value, look.ink)]
    for number, curve in enumerate(panel.curves):
        shift = DODGE * (number - (len(panel.curves) - 1) / 2)
        last = _draw_curve(axes, panel, curve, shift, look)
        if last is not None and curve.label:
            text, color = f"{curve.label} {quantity.write(last)}", curve.series
            labels.append(style.Label(text, last, look.series[color]))
    axes.set_ylim(panel.y_limits)
    if panel.is_log and quantity is not EFFICIENCY:
        style.set_plain_log(axes)
    else:
        style.set_ticks(axes, "y")
    if quantity is EFFICIENCY:
        axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    if panel.heading:
        axes.set_title(panel.heading, color=look.ink, pad=10)
    style.write_labels(axes, labels, style.HEIGHT)


def _draw_curve(
    axes: Axes, panel: Panel, curve: Curve, shift: float, look: Look
) -> float | None:
    """Draws line, intervals, repetitions and markers; returns the last value."""
    color, quantity, across = look.series[curve.series], panel.quantity, panel.across
    crosses = [
        across(point.num_replicas, shift)
        for point in curve.points_of_kind("crossed_out")
    ]
    axes.plot(
        crosses,
        [0.06] * len(crosses),
        transform=axes.get_xaxis_transform(),
        marker="x",
        markersize=8,
        markeredgewidth=2,
        linestyle="none",
        color=color,
        zorder=4,
    )
    # The axis begins at the baselines: all of 100 % are one point.
    spots = [
        (across(row.num_replicas, 0.0 if row.is_baseline else shift), row)
        for row in curve.points_of_kind("estimate")
    ]
    if not spots:
        return None
    axes.plot(
        [x for x, _ in spots],
        [row.value for _, row in spots],
        color=color,
        linewidth=1.6,
        linestyle=curve.dash,
        zorder=2,
    )
    singles = [*curve.points_of_kind("repetition")]
    if len(singles) <= MOST_DOTS:
        places = [across(row.num_replicas, shift + DOT_SHIFT) for row in singles]
        style.draw_dots(axes, places, [row.value for row in singles], color)
    for x, row in spots:
        if known(row.low) is not None:
            axes.vlines(x, row.low, row.high, color=color, linewidth=1.4, zorder=2.5)
        spot, is_hollow = (x, row.value, curve.series), bool(row.is_oversubscribed)
        marker = style.draw_marker(axes, *spot, look, is_hollow=is_hollow)
        name = f"{row.backend}, {row.mode} scaling, {_replicas(row)}: {quantity.slug}"
        svg.attach(marker, svg.row_tip(name, row, quantity.write))
    return float(spots[-1][1].value)


def _draw_ideals(axes: Axes, panel: Panel, look: Look) -> None:
    """Draws perfect scaling from each baseline; equal lines once."""
    quantity, sizes = panel.quantity, panel.sizes
    # From zero: perfect scaling is a straight line through the origin.
    places = sizes if panel.has_doublings else [0, *sizes]
    ideals = {
        tuple(quantity.ideal(n, int(row.num_replicas), row.value) for n in places):
        # The first of equal lines gives the colour.
        curve.series
        for curve, row in reversed([*panel.points_of_kind("estimate")])
        if row.is_baseline
    }
    for ideal, series in reversed(ideals.items()):
        axes.plot(
            places,
            ideal,
            color=look.series[series] if quantity is THROUGHPUT else look.muted,
            linewidth=1.0,
            dashes=DOTTED,
            zorder=1,
        )


def _hatch_oversubscribed(axes: Axes, panel: Panel, look: Look) -> None:
    rows = [row for curve in panel.curves for row in curve.rows]
    beyond = [int(row.num_replicas) for row in rows if row.is_oversubscribed]
    if beyond:
        first = min(beyond)
        within = [int(row.num_replicas) for row in rows if row.num_replicas < first]
        low = max(within, default=panel.sizes[0] / 1.4)
        left = (low * first) ** 0.5 if panel.has_doublings else (low + first) / 2
        style.hatch(axes, left, axes.get_xlim()[1], look)


def curves_of_first_screen(view: View) -> list[Curve]:
    """Returns the lines with a value beside the baseline's, in planned order."""
    rows = view.frame[view.frame["figure"] == "scaling"]
    rows = rows[rows["quantity"] == "efficiency"]
    has_several = len(view.study.backends) > 1
    curves = []
    for backend in view.study.backends:
        for mode in (mode.value for mode in view.study.modes):
            part = rows[(rows["backend"] == backend) & (rows["mode"] == mode)]
            if (part["kind"].eq("estimate") & ~part["is_baseline"]).any():
                dash = style.DASHES.get(mode, "-")
                label = f"{backend}\n{mode}" if has_several else mode
                name = f"{backend}, {mode}"
                curves.append(_curve(part, backend, name, dash=dash, label=label))
    return curves


def draw_first_screen(view: View) -> Markup | None:
    """Draws efficiency in both scaling modes, at most seven lines; None without any."""
    shown = tuple(curves_of_first_screen(view)[: style.MOST_LINES])
    if not shown:
        return None
    rows = view.frame[view.frame["figure"] == "scaling"]
    limits = _y_limits(rows[rows["quantity"] == "efficiency"], EFFICIENCY)
    panel = Panel(quantity=EFFICIENCY, curves=shown, y_limits=limits)
    return svg.draw(
        (style.WIDTH, style.HEIGHT),
        functools.partial(draw_on, panel=panel, look=style.PAGE),
        slug="hero",
        title="Parallel efficiency by number of replicas",
        description=_described(panel),
    )


MOST_TICKS: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LearningCurve:
    """One case: the median of its runs, and a band from the lowest to the highest."""

    label: str  # Written beside the end of the line, outside the axes.
    backend: str  # Colour and marker.
    frame: pd.DataFrame  # Evaluations of all runs; a single one has intervals.
    is_hollow: bool = False  # Whether the case is no evidence (oversubscribed).
    failed: tuple[float, ...] = ()  # Quality of each run that failed: infinitely bad.

    def by_run(self, column: str) -> np.ndarray:
        """Returns a row per evaluation that all runs have, a column per run."""
        groups = self.frame.groupby("trial_id", sort=False)[column]
        runs = [part.to_numpy(dtype=np.float64) for _, part in groups]
        return np.stack([run[: min(map(len, runs))] for run in runs], axis=1)


def learning_curves(
    frame: pd.DataFrame,
    metric: str,
    failed: Mapping[str, tuple[float, ...]] | None = None,
) -> list[LearningCurve]:
    selected = select(frame, "learning")
    selected = selected[selected["quantity"] == metric]
    is_one = len(set(selected["backend"])) == 1
    curves = []
    part: Any
    for case, part in selected.groupby("case", sort=False):
        first = part.iloc[0]
        label = f"N = {first.num_replicas}"
        if not is_one:
            label = f"{first.backend} {formats.TIMES}{first.num_replicas}"
        if first.revision:
            label = f"{first.revision[:7]}, {label}"
        curves.append(
            LearningCurve(
                label=label,
                backend=first.backend,
                frame=part,
                is_hollow=bool(first.is_oversubscribed),
                failed=(failed or {}).get(str(case), ()),
            )
        )
    return curves


def learning_limits(frame: pd.DataFrame) -> tuple[float, float]:
    """Returns limits of quality, which intervals of few examples do not squeeze."""
    ends = [*frame["low"].dropna(), *frame["high"].dropna()]
    return style.linear(frame["value"].tolist(), ends)


def _draw_learning_curve(
    axes: Axes, curve: LearningCurve, spent: str, width: float, look: Look
) -> None:
    color = look.color(curve.backend)
    values = curve.by_run("value")
    x = np.median(curve.by_run(spent), axis=1)
    if values.shape[1] > 1:
        low, high = values.min(axis=1), values.max(axis=1)
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0, zorder=1)
    else:
        run = curve.frame
        axes.vlines(run[spent], run["low"], run["high"], color=color, linewidth=1.1)
    failed = np.tile(curve.failed, (len(values), 1))
    typical = np.median(np.hstack([values, failed]), axis=1)
    axes.plot(
        x,
        np.where(np.isfinite(typical), typical, np.nan),  # nan where half failed
        color=color,
        linewidth=width,
        marker=style.MARKERS[series_of(curve.backend)],
        markersize=4.5,
        markerfacecolor=look.paper if curve.is_hollow else color,
        markeredgewidth=1.3,
        zorder=3,
    )


def draw_learning(
    axes: Axes,
    curves: Sequence[LearningCurve],
    *,
    spent: str,
    x_label: str,
    write: Callable[[float], str],
    look: Look,
    y_limits: tuple[float, float],
    heading: str = "",
) -> None:
    """Draws one panel; lines of the same colour get different widths."""
    widths = style.widths([curve.backend for curve in curves])
    for curve, width in zip(curves, widths, strict=True):
        _draw_learning_curve(axes, curve, spent, width, look)
    axes.set_xlim(left=0)
    axes.set_ylim(y_limits)
    axes.set_xlabel(x_label)
    axes.set_title(heading, color=look.ink, pad=10, loc="left")
    # Integers of many digits would overlap.
    axes.xaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS))
    axes.yaxis.set_major_formatter(lambda value, _: style.short(write(value)))
    labels = [
        style.Label(
            curve.label,
            float(np.median(curve.by_run("value")[-1])),
            look.color(curve.backend),
        )
        for curve in curves
    ]
    style.write_labels(axes, labels, style.HEIGHT)
