"""Quality against training time, examples or environment steps: one line per case."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Final

from matplotlib import ticker

from reports.charts.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from reports.charts.drawing.svg import Look

WIDTH, HEIGHT = 310, 225
MOST_LINES: Final = 7
MOST_TICKS: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CurveRun:
    """One quality run."""

    spent: tuple[float, ...]  # Positions of the evaluations on the x axis.
    values: tuple[float, ...]  # Quality at each.
    lows: tuple[float, ...]  # Lower ends of the intervals.
    highs: tuple[float, ...]  # Upper ends of the intervals.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One case: the median of its runs, and a band from the lowest to the highest."""

    label: str  # Written beside the end of the line, outside the axes.
    backend: str  # Colour and marker.
    # One per seed. A single one has the intervals of its measurements.
    runs: tuple[CurveRun, ...]
    is_hollow: bool = False  # Whether the case is no evidence (oversubscribed).
    # The quality of each run that failed: infinitely bad.
    failed: tuple[float, ...] = ()

    @property
    def num_common(self) -> int:
        """Evaluations that every run has."""
        return min(len(run.values) for run in self.runs)

    def median(self, of: Callable[[CurveRun], tuple[float, ...]]) -> list[float]:
        """Returns the median over runs at each common evaluation."""
        return [
            statistics.median(of(run)[k] for run in self.runs)
            for k in range(self.num_common)
        ]

    def typical(self) -> list[float]:
        """Returns the median quality at each, of all runs; nan where half failed."""
        found = [
            statistics.median([*(run.values[k] for run in self.runs), *self.failed])
            for k in range(self.num_common)
        ]
        return [value if math.isfinite(value) else math.nan for value in found]


def _draw_curve(axes: Axes, curve: Curve, width: float, look_: Look) -> None:
    color = look_.color(curve.backend)
    spent = curve.median(lambda run: run.spent)
    values = curve.typical()
    if len(curve.runs) > 1:
        every = [[run.values[k] for run in curve.runs] for k in range(curve.num_common)]
        axes.fill_between(
            spent,
            [min(column) for column in every],
            [max(column) for column in every],
            color=color,
            alpha=0.2,
            linewidth=0,
            zorder=1,
        )
    else:
        run = curve.runs[0]
        axes.vlines(run.spent, run.lows, run.highs, color=color, linewidth=1.1)
    axes.plot(
        spent,
        values,
        color=color,
        linewidth=width,
        marker=svg.marker(curve.backend),
        markersize=4.5,
        markerfacecolor=look_.paper if curve.is_hollow else color,
        markeredgewidth=1.3,
        zorder=3,
    )


def draw_on(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    x_label: str,
    write: Callable[[float], str],
    look_: Look,
    y_limits: tuple[float, float] | None = None,
    heading: str = "",
) -> None:
    """Draws one panel; lines of the same colour get different widths."""
    seen: dict[str, int] = {}
    for curve in curves:
        number = seen[curve.backend] = seen.get(curve.backend, -1) + 1
        _draw_curve(axes, curve, svg.width_of_line(number), look_)
    axes.set_xlim(left=0)
    if y_limits is not None:
        axes.set_ylim(y_limits)
    axes.set_xlabel(x_label)
    axes.set_title(heading, color=look_.ink, pad=10, loc="left")
    # Integers of many digits would overlap.
    axes.xaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS))
    axes.yaxis.set_major_formatter(lambda value, _: svg.short(write(value)))
    named = [
        svg.Label(
            text=curve.label,
            value=curve.median(lambda run: run.values)[-1],
            color=look_.color(curve.backend),
        )
        for curve in curves
    ]
    svg.write_label(axes, named, HEIGHT)
