"""The figure of the first screen: efficiency against the number of replicas."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator, NullLocator

from reports.charts import labels, quantities, svg, tips
from reports.words import formats
from results.figures import scaling
from results.records.models import Control, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.view.view import View
    from results.figures.scaling import Point

WIDTH, HEIGHT = 300, 205
MOST_LINES: Final = 7
MOST_LINEAR: Final = 16
"""More replicas than this are on a logarithmic axis."""
DODGES: Final = 32
"""Lines are this fraction of the axis apart, so that none hides another's interval."""
HIGHEST: Final = 1.3
"""Intervals and dots above this are clipped; the table has them."""
STYLES: Final = {ScalingMode.WEAK: "-", ScalingMode.STRONG: "--"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One backend in one scaling mode.

    Attributes:
      backend: Its name.
      mode: Weak or strong.
      points: Those with a known efficiency, replicas ascending.
      series: Colour and marker.
    """

    backend: str
    mode: ScalingMode
    points: tuple[Point, ...]
    series: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """What programs that never communicate reach, relative to ideal.

    Attributes:
      num_replicas: Their number.
      value: Their throughput relative to as many times one replica alone.
    """

    num_replicas: int
    value: float


def lines(view: View) -> list[Line]:
    """Returns the lines with at least two points, in planned order."""
    found = []
    for backend in view.study.backends:
        for mode in view.study.modes:
            points = tuple(
                point
                for point in view.points_of(mode, backend)
                if quantities.value_of(quantities.EFFICIENCY, point) is not None
            )
            if any(not point.is_baseline for point in points):
                series = view.series(backend)
                line = Line(backend=backend, mode=mode, points=points, series=series)
                found.append(line)
    return found


def ceilings(view: View) -> list[Ceiling]:
    """Returns the ceilings that were measured, replicas ascending."""
    found = {}
    for control in view.study.controls:
        if control.spec.control is not Control.SOLO or not control.ok_entries:
            continue
        for point in view.points:
            spec = point.case.spec
            if not point.is_baseline or spec.per_replica_batch_size != (
                control.spec.per_replica_batch_size
            ):
                continue
            ratio = scaling.throughput_ratio(control, point.case)
            number = control.spec.num_replicas
            if ratio is not None and number not in found:
                found[number] = ratio.value * spec.num_replicas / number
    return [
        Ceiling(num_replicas=number, value=value)
        for number, value in sorted(found.items())
    ]


def describe(shown: Sequence[Line], of_ceilings: Sequence[Ceiling]) -> str:
    """Describes the figure in words."""
    parts = []
    for line in shown:
        values = [
            f"{formats.percent(value)} at {formats.count(p.num_replicas, 'replica')}"
            for p in line.points
            if (value := quantities.value_of(quantities.EFFICIENCY, p)) is not None
        ]
        parts.append(f"{line.backend}, {line.mode.value}: {', '.join(values)}")
    parts += [
        f"ceiling without communication: {formats.percent(one.value)} at "
        f"{formats.count(one.num_replicas, 'replica')}"
        for one in of_ceilings
    ]
    return f"{'; '.join(parts)}."


def draw(view: View) -> Markup | None:
    """Draws at most ``MOST_LINES`` lines; None without any."""
    shown = lines(view)[:MOST_LINES]
    if not shown:
        return None
    of_ceilings = ceilings(view)
    sizes = sorted({p.num_replicas for line in shown for p in line.points})
    sizes = sorted({*sizes, *(one.num_replicas for one in of_ceilings)})
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        top = _top(shown, of_ceilings)
        _set_axes(axes, sizes, top)
        step = (sizes[-1] - sizes[0] or 1) / DODGES
        for number, line in enumerate(shown):
            shift = (number - (len(shown) - 1) / 2) * step
            _draw_line(axes, line, shift, step / 2, top)
        for one in of_ceilings:
            _draw_ceiling(axes, one, (sizes[-1] - sizes[0]) / 14)
        _label(axes, shown, of_ceilings, several=len(view.study.backends) > 1)
        return svg.inline(
            figure,
            slug="hero",
            title="Parallel efficiency by number of replicas",
            description=describe(shown, of_ceilings),
        )


def _top(shown: Sequence[Line], of_ceilings: Sequence[Ceiling]) -> float:
    values = [1.0, *(one.value for one in of_ceilings)]
    for line in shown:
        for point in line.points:
            values += quantities.dots(quantities.EFFICIENCY, point)
            if point.efficiency is not None:
                values += [point.efficiency.value, point.efficiency.high or 0.0]
    most = max(
        point.efficiency.value
        for line in shown
        for point in line.points
        if point.efficiency is not None
    )
    return max(min(max(values), HIGHEST), most) * 1.06


def _set_axes(axes: Axes, sizes: Sequence[int], top: float) -> None:
    first, last = sizes[0], sizes[-1]
    if last > MOST_LINEAR:
        axes.set_xscale("log", base=2)
        axes.set_xlim(first / 1.15, last * 1.15)
    else:
        margin = (last - first or 1) * 0.09
        axes.set_xlim(first - margin, last + margin)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("replicas")
    axes.axhline(1.0, color=svg.MUTED, linewidth=1.1, dashes=(2, 2.5), zorder=1)


def _draw_line(axes: Axes, line: Line, shift: float, aside: float, top: float) -> None:
    color, marker = svg.SERIES[line.series], svg.MARKERS[line.series]
    if axes.get_xscale() == "log":
        shift = aside = 0.0
    # All baselines are one point: 100 % by definition.
    places = [p.num_replicas + shift * (not p.is_baseline) for p in line.points]
    values = [_value(point) for point in line.points]
    axes.plot(
        places,
        values,
        color=color,
        linewidth=1.8,
        linestyle=STYLES[line.mode],
        zorder=3,
    )
    for point, place, value in zip(line.points, places, values, strict=True):
        estimate = point.efficiency
        if estimate is not None and estimate.low is not None:
            ends = [estimate.low, min(estimate.high or top, top)]
            axes.plot([place] * 2, ends, color=color, linewidth=1.5, zorder=3)
        dots = quantities.dots(quantities.EFFICIENCY, point)
        axes.scatter([place + aside] * len(dots), dots, s=6, color=svg.INK, zorder=5)
        (marked,) = axes.plot(
            [place],
            [value],
            marker=marker,
            markersize=5.5,
            color=color,
            markerfacecolor=svg.PAPER if point.is_oversubscribed else color,
            markeredgewidth=1.4,
            zorder=4,
        )
        tips.attach(marked, tip_of(line, point))


def tip_of(line: Line, point: Point) -> str:
    """Returns what a point says when it is pointed at."""
    estimate = point.efficiency
    replicas = formats.count(point.num_replicas, "replica")
    return tips.of_value(
        f"{line.backend}, {line.mode.value} scaling, {replicas}: efficiency",
        _value(point),
        formats.percent,
        interval=(None, None) if estimate is None else (estimate.low, estimate.high),
        n=None if estimate is None else estimate.n,
    )


def _value(point: Point) -> float:
    """Returns the efficiency of a point of a line, which is known."""
    value = quantities.value_of(quantities.EFFICIENCY, point)
    assert value is not None
    return value


def _draw_ceiling(axes: Axes, one: Ceiling, reach: float) -> None:
    axes.plot(
        [one.num_replicas - reach, one.num_replicas + reach],
        [one.value] * 2,
        color=svg.INK,
        linewidth=2,
        solid_capstyle="butt",
        zorder=2,
    )


def _label(
    axes: Axes,
    shown: Sequence[Line],
    of_ceilings: Sequence[Ceiling],
    *,
    several: bool,
) -> None:
    """Writes the name of each line beside its end, in the margin at the right."""
    found = []
    for line in shown:
        value = _value(line.points[-1])
        mode = line.mode.value
        text = f"{line.backend}\n{mode}" if several else mode
        found.append(
            labels.Label(
                text=f"{text} {formats.percent(value)}",
                value=value,
                color=svg.SERIES[line.series],
            )
        )
    if of_ceilings:
        last = of_ceilings[-1]
        text = f"no communication\n{formats.percent(last.value)}"
        found.append(labels.Label(text=text, value=last.value, color=svg.INK))
    labels.write(axes, found, HEIGHT)
