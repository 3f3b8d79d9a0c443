"""Throughput, speedup and efficiency over replicas: one panel per scaling mode."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from matplotlib.ticker import NullLocator

from reports import formats, svg
from reports.figures import limits, references
from results import scaling, statistics
from results.records import Control

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.view import View
    from results.records import ScalingMode
    from results.scaling import Point
    from results.statistics import Estimate

WIDTH, HEIGHT = 330, 235
DODGE = 0.04
DOT_SHIFT = 0.055
"""Curves and dots are shifted sideways by this many doublings, so none is hidden."""
CEILING_REACH = 1.14
"""How far the line of a ceiling reaches to either side, as a factor."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One quantity that is drawn over the number of replicas.

    Attributes:
      name: As in the glossary.
      slug: For ids.
      estimate: Returns its estimate at a point.
      dots: Raw values of a point, one per repetition.
      ideal: The value of perfect scaling at n replicas from a baseline at n_b replicas
        with value x.
      write: Formats one value.
    """

    name: str
    slug: str
    estimate: Callable[[Point], Estimate | None]
    dots: Callable[[Point], list[float]]
    ideal: Callable[[int, int, float], float]
    write: Callable[[float], str]


def _throughputs(point: Point) -> list[float]:
    return list(scaling.values(point.case, scaling.throughput_of).values())


def _speedups(point: Point) -> list[float]:
    """Ratios of single repetitions, where both sides have the same ones."""
    if point.is_baseline or point.baseline is None or point.speedup is None:
        return []
    if point.speedup.method == statistics.TWO_GROUPS:
        return []
    here = scaling.values(point.case, scaling.throughput_of)
    there = scaling.values(point.baseline, scaling.throughput_of)
    factor = point.baseline.spec.num_replicas
    return [factor * here[key] / there[key] for key in here if key in there]


THROUGHPUT = Quantity(
    name="Throughput",
    slug="throughput",
    estimate=lambda point: point.throughput,
    dots=_throughputs,
    ideal=lambda n, base, value: value * n / base,
    write=formats.significant,
)
SPEEDUP = Quantity(
    name="Speedup",
    slug="speedup",
    estimate=lambda point: point.speedup,
    dots=_speedups,
    ideal=lambda n, _base, _value: float(n),
    write=formats.times,
)
EFFICIENCY = Quantity(
    name="Parallel efficiency",
    slug="efficiency",
    estimate=lambda point: point.efficiency,
    dots=lambda point: [value / point.num_replicas for value in _speedups(point)],
    ideal=lambda _n, _base, _value: 1.0,
    write=formats.percent,
)
QUANTITIES = (THROUGHPUT, SPEEDUP, EFFICIENCY)


def value_of(quantity: Quantity, point: Point) -> float | None:
    """Returns the value of a point; the baseline's is fixed by definition."""
    estimate = quantity.estimate(point)
    if estimate is not None:
        return estimate.value
    if point.is_baseline and point.throughput is not None:
        return quantity.ideal(point.num_replicas, point.num_replicas, 1.0)
    return None


def _shift(view: View, backend: str) -> float:
    """Factor on the number of replicas that shifts a backend sideways."""
    backends = view.study.backends
    return 2 ** (DODGE * (backends.index(backend) - (len(backends) - 1) / 2))


def _draw_curve(
    axes: Axes, quantity: Quantity, curve: tuple[Point, ...], series: int, shift: float
) -> None:
    color, marker = svg.SERIES[series], svg.MARKERS[series]
    known = [(point, value_of(quantity, point)) for point in curve]
    drawn = [(point, value) for point, value in known if value is not None]
    places = [point.num_replicas * shift for point, _ in drawn]
    axes.plot(
        places,
        [value for _, value in drawn],
        color=color,
        linewidth=1.6,
        linestyle=svg.DASHES[series],
        zorder=2,
    )
    for (point, value), place in zip(drawn, places, strict=True):
        estimate = quantity.estimate(point)
        if estimate is not None and estimate.low is not None:
            assert estimate.high is not None
            axes.plot(
                [place, place],
                [estimate.low, estimate.high],
                color=color,
                linewidth=4.5,
                alpha=0.35,
                solid_capstyle="butt",
                zorder=2,
            )
        dots = quantity.dots(point)
        axes.scatter(
            [place * 2**DOT_SHIFT] * len(dots),
            dots,
            s=7,
            color=color,
            alpha=0.6,
            linewidths=0,
            zorder=3,
        )
        axes.plot(
            [place],
            [value],
            marker=marker,
            markersize=5,
            color=color,
            markerfacecolor=svg.PAPER if point.is_oversubscribed else color,
            markeredgewidth=1.4,
            zorder=4,
        )


def _draw_ideal(axes: Axes, quantity: Quantity, view: View, mode: ScalingMode) -> None:
    """One shared line, or one per backend where the baselines differ."""
    sizes = sorted({point.num_replicas for point in view.points if point.mode is mode})
    drawn = set()
    for backend in view.study.backends:
        for point in view.points_of(mode, backend):
            if not point.is_baseline or point.throughput is None:
                continue
            start = point.throughput.value
            line = tuple(quantity.ideal(n, point.num_replicas, start) for n in sizes)
            if line in drawn or (len(sizes) == 1 and quantity is THROUGHPUT):
                continue
            drawn.add(line)
            own = quantity is THROUGHPUT
            axes.plot(
                [n * _shift(view, backend) for n in sizes] if own else sizes,
                line,
                color=svg.SERIES[view.series(backend)] if own else svg.MUTED,
                alpha=0.7,
                linewidth=0.9,
                dashes=(2, 2.5),
                zorder=1,
            )


def ceilings(quantity: Quantity, view: View, mode: ScalingMode) -> dict[int, float]:
    """Returns the throughput of programs that never communicate, by their number."""
    if quantity is not THROUGHPUT:
        return {}
    found = {
        case.spec.num_replicas: scaling.estimate(case, scaling.throughput_of, unit="")
        for case in view.study.controls
        if case.spec.control is Control.SOLO and mode in case.modes
    }
    return {n: estimate.value for n, estimate in found.items() if estimate is not None}


def _draw_ceilings(
    axes: Axes, quantity: Quantity, view: View, mode: ScalingMode
) -> None:
    for num_replicas, value in ceilings(quantity, view, mode).items():
        axes.plot(
            [num_replicas / CEILING_REACH, num_replicas * CEILING_REACH],
            [value, value],
            color=svg.INK,
            linewidth=1.6,
            zorder=3,
        )


def _hatch_oversubscribed(axes: Axes, view: View, mode: ScalingMode) -> None:
    points = [point for point in view.points if point.mode is mode]
    beyond = [point.num_replicas for point in points if point.is_oversubscribed]
    if not beyond:
        return
    within = [n for n in (p.num_replicas for p in points) if n < min(beyond)]
    left = (max(within) * min(beyond)) ** 0.5 if within else min(beyond) / 1.4
    axes.axvspan(
        left,
        max(beyond) * 1.35,
        facecolor="none",
        edgecolor=svg.GRID,
        hatch="////",
        linewidth=0,
        zorder=0,
    )


def _limits(
    quantity: Quantity, view: View, mode: ScalingMode, sizes: list[int]
) -> tuple[float, float]:
    anchors, ends = [], []
    for point in view.points:
        value = value_of(quantity, point)
        if point.mode is not mode or value is None:
            continue
        anchors += [value, *quantity.dots(point)]
        if point.is_baseline:
            n_b = point.num_replicas
            anchors += [quantity.ideal(n, n_b, value) for n in sizes]
        estimate = quantity.estimate(point)
        if estimate is not None and estimate.low is not None:
            assert estimate.high is not None
            ends += [estimate.low, estimate.high]
    anchors += ceilings(quantity, view, mode).values()
    return limits.logarithmic(anchors or [1.0], ends)


def describe(quantity: Quantity, view: View, mode: ScalingMode) -> str:
    """Describes a panel in words."""
    parts = []
    for backend in view.study.backends:
        values = [
            f"{quantity.write(value)} at {formats.count(p.num_replicas, 'replica')}"
            + (" (oversubscribed)" if p.is_oversubscribed else "")
            for p in view.points_of(mode, backend)
            if (value := value_of(quantity, p)) is not None
        ]
        if values:
            parts.append(f"{backend}: {', '.join(values)}")
    parts += [
        f"ceiling, programs that never communicate: {quantity.write(value)} at "
        f"{formats.count(n, 'replica')}"
        for n, value in ceilings(quantity, view, mode).items()
    ]
    return f"{'; '.join(parts)}." if parts else "No trial is ok."


def draw(quantity: Quantity, view: View, mode: ScalingMode) -> Markup:
    """Draws one panel."""
    unit = view.rate_unit
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        _hatch_oversubscribed(axes, view, mode)
        _draw_ideal(axes, quantity, view, mode)
        _draw_ceilings(axes, quantity, view, mode)
        for backend in view.study.backends:
            curve = view.points_of(mode, backend)
            shift = _shift(view, backend)
            _draw_curve(axes, quantity, curve, view.series(backend), shift)
        sizes = sorted({p.num_replicas for p in view.points if p.mode is mode})
        published = view.references if quantity is EFFICIENCY else ()
        references.draw(axes, published, mode, sizes)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(min(sizes) / 1.25, max(sizes) * 1.35)
        limits_of_y = _limits(quantity, view, mode, sizes)
        axes.set_ylim(limits_of_y)
        if quantity is EFFICIENCY:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
        else:
            svg.set_plain_log(axes, "y")
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("replicas")
        heading = f"{mode.value.capitalize()} scaling"
        if quantity is THROUGHPUT:
            heading += f", {unit}"
        axes.set_title(heading, color=svg.INK, pad=10)
        return svg.inline(
            figure,
            slug=f"{quantity.slug}-{mode.value}",
            title=f"{quantity.name}, {mode.value} scaling",
            description=describe(quantity, view, mode)
            + references.describe(published, mode, sizes),
        )
