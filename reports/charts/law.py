"""A fitted law of throughput: its band, what was measured, and its knee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator

from reports.charts import svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

    from results.statistics.laws import Fit

WIDTH, HEIGHT = 300, 205
NAMES: Final = {"amdahl": "Amdahl", "usl": "USL"}
DASHES: Final = {"amdahl": "--", "usl": "-"}
BAND: Final = 0.22
MOST_LINEAR: Final = 16


def describe(fits: tuple[Fit, ...], name: str) -> str:
    """Describes the figure in words."""
    parts = []
    for fit in fits:
        test = fit.backtest
        where = "inside" if test.is_inside else "outside"
        parts.append(
            f"{NAMES[fit.law]}: sigma {formats.significant(fit.sigma.value)}; measured "
            f"at {formats.count(test.num_replicas, 'replica')}, held out: {where} the "
            f"prediction"
        )
        if fit.knee.num_replicas is not None:
            parts.append(
                f"knee at {formats.significant(fit.knee.num_replicas)} replicas"
            )
    return f"{name}. {'; '.join(parts)}."


def draw(
    fits: tuple[Fit, ...],
    measured: Mapping[int, float],
    *,
    series: int,
    name: str,
    unit: str,
    slug: str,
) -> Markup:
    """Draws the laws of one curve, linear from zero.

    Args:
      fits: Of one backend in one scaling mode; at least one.
      measured: Mean throughput by number of replicas.
      series: Colour and marker.
      name: Backend and scaling mode.
      unit: Of throughput.
      slug: Prefix of ids.
    """
    color = svg.SERIES[series]
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, HEIGHT)
        # The law with the most parameters has the band that covers what is unknown.
        widest = fits[-1].curve
        axes.fill_between(
            widest.num_replicas,
            widest.lows,
            widest.highs,
            color=color,
            alpha=BAND,
            linewidth=0,
        )
        for fit in fits:
            curve = fit.curve
            axes.plot(
                curve.num_replicas,
                curve.throughputs,
                color=color,
                linestyle=DASHES[fit.law],
                linewidth=1.6,
            )
            if fit.knee.num_replicas is not None:
                axes.axvline(fit.knee.num_replicas, color=svg.MUTED, linewidth=1.1)
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
            title=f"Laws of throughput, {name}",
            description=describe(fits, name),
        )
