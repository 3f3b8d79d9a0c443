"""Throughput, speedup and efficiency over replicas: a panel per scaling mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from matplotlib.ticker import MaxNLocator

from reports.charts import limits, look, references, replicas_axis, svg, tips
from reports.charts.quantities import EFFICIENCY, THROUGHPUT
from reports.charts.replicas_axis import Sideways
from reports.words import formats
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.look import Look
    from reports.charts.quantities import Quantity
    from reports.view.reference_points import Source

WIDTH, HEIGHT = 310, 225
MOST_LINES: Final = 7
"""More backends than this are drawn in several panels."""
MOST_LINEAR: Final = 16
"""Of more replicas, efficiency is over doublings, which a linear axis would squeeze."""
DOT_SHIFT: Final = 0.012
"""Dots are shifted sideways by this share of an axis, so none is hidden."""
MOST_DOTS: Final = 150
"""Of more repetitions of a backend, only markers and intervals are drawn."""
CEILING_REACH: Final = 0.035
"""How far the line of a ceiling reaches to either side, as a share of the axis."""


def backends_of(frame: pd.DataFrame) -> list[str]:
    """Returns the backends of a frame, in its order."""
    return list(dict.fromkeys(frame["backend"]))


def panels_of(frame: pd.DataFrame) -> list[list[str]]:
    """Returns the backends of each panel: at most seven lines each."""
    found = backends_of(frame)
    return [found[i : i + MOST_LINES] for i in range(0, len(found), MOST_LINES)]


def _draw_curve(
    axes: Axes,
    rows: pd.DataFrame,
    quantity: Quantity,
    shift: float,
    sideways: Sideways,
    look_: Look,
) -> None:
    """Draws one backend: line, intervals, repetitions, markers."""
    backend = rows["backend"].iloc[0]
    color, marker = look_.color(backend), look.marker(backend)
    estimates = rows[rows["kind"] == "estimate"].sort_values("num_replicas")
    places = [sideways(n, shift) for n in estimates["num_replicas"].astype(int)]
    values = estimates["value"].tolist()
    axes.plot(places, values, color=color, linewidth=1.6, linestyle=look.dash(backend))
    with_interval = estimates["low"].notna()
    axes.vlines(
        [x for x, shown in zip(places, with_interval, strict=True) if shown],
        estimates["low"][with_interval],
        estimates["high"][with_interval],
        color=color,
        linewidth=1.3,
        zorder=2.5,
    )
    dots = rows[rows["kind"] == "repetition"]
    if len(dots) > MOST_DOTS:
        dots = dots.head(0)
    axes.plot(
        [sideways(n, shift + DOT_SHIFT) for n in dots["num_replicas"].astype(int)],
        dots["value"],
        linestyle="none",
        marker=".",
        markersize=3,
        markeredgewidth=0,
        color=color,
        zorder=3,
    )
    for place, row in zip(places, _each(estimates), strict=True):
        (marked,) = axes.plot(
            [place],
            [row.value],
            linestyle="none",
            marker=marker,
            markersize=5,
            color=color,
            markerfacecolor=look_.paper if row.is_oversubscribed else color,
            markeredgewidth=1.4,
            zorder=4,
        )
        tips.attach(marked, tip_of(row, quantity))


def tip_of(row: Any, quantity: Quantity) -> str:
    """Returns what an estimate of the frame says when it is pointed at."""
    replicas = formats.count(int(row.num_replicas), "replica")
    is_measured = not pd.isna(row.n)
    has_interval = not pd.isna(row.low)
    return tips.of_value(
        f"{row.backend}, {row.mode} scaling, {replicas}: {quantity.slug}",
        row.value,
        quantity.write,
        interval=(row.low, row.high) if has_interval else (None, None),
        n=int(row.n) if is_measured else None,
        unit=row.unit,
    )


def _each(rows: pd.DataFrame) -> Iterator[Any]:
    """Yields rows as named tuples; the types of their values are not known."""
    yield from rows.itertuples()


def _ideals(
    estimates: pd.DataFrame, quantity: Quantity, sizes: Sequence[int]
) -> dict[tuple[float, ...], str]:
    """Returns perfect scaling at every size, by the backend of the baseline."""
    found: dict[tuple[float, ...], str] = {}
    for row in _each(estimates[estimates["is_baseline"]]):
        base = int(row.num_replicas)
        line = tuple(quantity.ideal(n, base, row.value) for n in sizes)
        found.setdefault(line, row.backend)
    return found


def _shift(backends: Sequence[str], number: int) -> float:
    return replicas_axis.DODGE * (number - (len(backends) - 1) / 2)


def _draw_crosses(
    axes: Axes,
    rows: pd.DataFrame,
    backends: Sequence[str],
    sideways: Sideways,
    look_: Look,
) -> None:
    """Marks the cases that are crossed out, at the panel's foot."""
    for number, backend in enumerate(backends):
        mine = rows[(rows["kind"] == "crossed_out") & (rows["backend"] == backend)]
        axes.plot(
            [sideways(int(n), _shift(backends, number)) for n in mine["num_replicas"]],
            [0.06] * len(mine),
            transform=axes.get_xaxis_transform(),
            marker="x",
            markersize=8,
            markeredgewidth=2,
            linestyle="none",
            color=look_.color(backend),
            zorder=4,
        )


def _hatch_oversubscribed(
    axes: Axes, rows: pd.DataFrame, sideways: Sideways, look_: Look
) -> None:
    beyond = rows["num_replicas"][rows["is_oversubscribed"]]
    if beyond.empty:
        return
    first = int(beyond.min())
    within = [int(n) for n in rows["num_replicas"] if n < first]
    low = max(within) if within else sideways.smallest / 1.4
    left = (low * first) ** 0.5 if sideways.is_log else (low + first) / 2
    axes.axvspan(
        left,
        axes.get_xlim()[1],
        facecolor="none",
        edgecolor=look_.grid,
        hatch="////",
        linewidth=0,
        zorder=0,
    )


def y_limits(
    rows: pd.DataFrame, quantity: Quantity, *, is_log: bool
) -> tuple[float, float]:
    """Returns limits that all panels of a quantity share; linear ones are from zero."""
    estimates = rows[rows["kind"] == "estimate"]
    sizes = sorted({int(n) for n in rows["num_replicas"]})
    anchors = [float(value) for value in rows["value"].dropna()]
    anchors += [value for line in _ideals(estimates, quantity, sizes) for value in line]
    ends = [
        float(end) for end in (*estimates["low"].dropna(), *estimates["high"].dropna())
    ]
    if is_log and quantity is not EFFICIENCY:
        return limits.logarithmic(anchors or [1.0], ends)
    return limits.from_zero(anchors, ends)


def draw_on(
    axes: Axes,
    frame: pd.DataFrame,
    quantity: Quantity,
    mode: str,
    *,
    backends: Sequence[str],
    is_log: bool,
    look_: Look,
) -> None:
    """Draws one panel.

    Args:
      axes: Where.
      frame: Rows of ``figure == "scaling"``, of all modes: they share the y axis.
      quantity: What.
      mode: Of the panel.
      backends: Those that are drawn, at most seven.
      is_log: Whether both axes are logarithmic; of efficiency, only that of replicas.
      look_: Colours.
    """
    of_quantity = frame[frame["quantity"] == quantity.slug]
    shown = of_quantity[
        (of_quantity["mode"] == mode) & of_quantity["backend"].isin(backends)
    ]
    sizes = sorted({int(n) for n in frame["num_replicas"][frame["mode"] == mode]})
    is_over_doublings = is_log or (quantity is EFFICIENCY and sizes[-1] > MOST_LINEAR)
    sideways = Sideways(sizes=tuple(sizes), is_log=is_over_doublings)
    replicas_axis.set_axis(axes, sizes, sideways)
    _hatch_oversubscribed(axes, shown, sideways, look_)
    estimates = shown[shown["kind"] == "estimate"]
    for line, backend in _ideals(estimates, quantity, sizes).items():
        own = quantity is THROUGHPUT
        # From zero: perfect scaling is a straight line through the origin.
        is_open = not is_log and quantity is not EFFICIENCY
        axes.plot(
            [0, *sizes] if is_open else sizes,
            [0.0, *line] if is_open else line,
            color=look_.color(backend) if own else look_.muted,
            linewidth=1.0,
            dashes=(2, 2.5),
            zorder=1,
        )
    for row in _each(shown[shown["kind"] == "ceiling"]):
        reach = [sideways(int(row.num_replicas), s * CEILING_REACH) for s in (-1, 1)]
        color = look_.ink if quantity is THROUGHPUT else look_.color(row.backend)
        axes.plot(reach, [row.value] * 2, color=color, linewidth=1.6, zorder=3)
    for number, backend in enumerate(backends):
        rows = shown[shown["backend"] == backend]
        if not rows.empty:
            shift = _shift(backends, number)
            _draw_curve(axes, rows, quantity, shift, sideways, look_)
    _draw_crosses(axes, shown, backends, sideways, look_)
    axes.set_ylim(y_limits(of_quantity, quantity, is_log=is_log))
    if is_log and quantity is not EFFICIENCY:
        svg.set_plain_log(axes, "y")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if quantity is EFFICIENCY:
        axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    heading = f"{mode.capitalize()} scaling"
    units = [unit for unit in shown["unit"] if unit]
    if quantity is THROUGHPUT and units:
        heading += f", {units[0]}"
    axes.set_title(heading, color=look_.ink, pad=10)


def describe(frame: pd.DataFrame, quantity: Quantity, mode: str) -> str:
    """Describes a panel in words."""
    rows = frame[(frame["quantity"] == quantity.slug) & (frame["mode"] == mode)]
    parts = []
    for backend in backends_of(frame):
        estimates = rows[(rows["kind"] == "estimate") & (rows["backend"] == backend)]
        values = [
            f"{quantity.write(row.value)} at "
            f"{formats.count(int(row.num_replicas), 'replica')}"
            + (" (oversubscribed)" if row.is_oversubscribed else "")
            for row in _each(estimates)
        ]
        crossed = rows[(rows["kind"] == "crossed_out") & (rows["backend"] == backend)]
        values += [
            f"crossed out at {formats.count(int(row.num_replicas), 'replica')}, since "
            f"it {row.method}"
            for row in _each(crossed)
        ]
        if values:
            parts.append(f"{backend}: {', '.join(values)}")
    parts += [
        ("ceiling" if quantity is THROUGHPUT else f"ceiling of {row.backend}")
        + f", programs that never communicate: {quantity.write(row.value)} at "
        f"{formats.count(int(row.num_replicas), 'replica')}"
        for row in _each(rows[rows["kind"] == "ceiling"])
    ]
    return f"{'; '.join(parts)}." if parts else "No trial is ok."


def draw(
    frame: pd.DataFrame,
    quantity: Quantity,
    mode: str,
    *,
    backends: Sequence[str],
    is_log: bool = False,
    suffix: str = "",
    published: Sequence[Source] = (),
) -> Markup:
    """Draws one panel as a figure of the page."""
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        draw_on(
            axes,
            frame,
            quantity,
            mode,
            backends=backends,
            is_log=is_log,
            look_=look.PAGE,
        )
        shown = published if quantity is EFFICIENCY else ()
        sizes = [int(n) for n in frame["num_replicas"][frame["mode"] == mode]]
        references.draw(axes, shown, ScalingMode(mode), sizes)
        scale = ", logarithmic" if is_log else ""
        return svg.inline(
            figure,
            slug=f"{quantity.slug}-{mode}{'-log' if is_log else ''}{suffix}",
            title=f"{quantity.name}, {mode} scaling{scale}",
            description=describe(frame, quantity, mode)
            + references.describe(shown, ScalingMode(mode), sizes),
        )
