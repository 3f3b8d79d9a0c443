"""Amdahl's law of throughput: its band, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator

from reports.charts.drawing import svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

    from results.statistics.amdahl import Fit

WIDTH, HEIGHT = 300, 205
BAND: Final = 0.22
MOST_LINEAR: Final = 16


def describe(fit: Fit, name: str) -> str:
    """Describes the figure in words."""
    test = fit.backtest
    where = "inside" if test.is_inside else "outside"
    return (
        f"{name}. Amdahl: sigma {formats.significant(fit.sigma.value)}; measured at "
        f"{formats.count(test.num_replicas, 'replica')}, held out: {where} the "
        f"prediction."
    )


def draw(
    fit: Fit,
    measured: Mapping[int, float],
    *,
    series: int,
    name: str,
    unit: str,
    slug: str,
) -> Markup:
    """Draws the law of one curve, linear from zero.

    Args:
      fit: Of one backend in one scaling mode.
      measured: Mean throughput by number of replicas.
      series: Colour and marker.
      name: Backend and scaling mode.
      unit: Of throughput.
      slug: Prefix of ids.
    """
    color = svg.SERIES[series]
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        curve = fit.curve
        axes.fill_between(
            curve.num_replicas,
            curve.lows,
            curve.highs,
            color=color,
            alpha=BAND,
            linewidth=0,
        )
        axes.plot(curve.num_replicas, curve.throughputs, color=color, linewidth=1.6)
        axes.plot(
            list(measured),
            list(measured.values()),
            color=color,
            marker=svg.MARKERS[series],
            linestyle="none",
            markersize=5.5,
        )
        sizes = sorted(measured)
        if sizes[-1] > MOST_LINEAR:
            axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(0, 1.15 * max(measured.values()))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("replicas")
        axes.set_title(f"{name}, {unit}", color=svg.INK, pad=10)
        return svg.inline(
            figure,
            slug=slug,
            title=f"Amdahl's law of throughput, {name}",
            description=describe(fit, name),
        )
