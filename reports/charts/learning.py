"""Quality over training, a line per case; and how many runs reached a level."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib import ticker

from reports.charts import rows, style, svg
from reports.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.style import Look
    from results.statistics.run_scores import Profile

MOST_TICKS: Final = 5
_KEYS: Final = ["backend", "num_replicas", "per_replica_batch_size", "revision"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One case: the median of its runs, and a band from the lowest to the highest."""

    label: str  # Written beside the end of the line, outside the axes.
    backend: str  # Colour and marker.
    rows: pd.DataFrame  # Evaluations of all runs; a single one has intervals.
    is_hollow: bool = False  # Whether the case is no evidence (oversubscribed).
    failed: tuple[float, ...] = ()  # Quality of each run that failed: infinitely bad.

    def by_run(self, column: str) -> np.ndarray:
        """Returns a row per evaluation that all runs have, a column per run."""
        groups = self.rows.groupby("trial_id", sort=False)[column]
        runs = [part.to_numpy(dtype=np.float64) for _, part in groups]
        return np.stack([run[: min(map(len, runs))] for run in runs], axis=1)


def curves_of(
    frame: pd.DataFrame,
    metric: str,
    failed: Mapping[tuple[Any, ...], tuple[float, ...]] | None = None,
) -> list[Curve]:
    """Returns a curve per case."""
    found = rows.select(frame, "learning")
    found = found[found["quantity"] == metric]
    is_one = len(set(found["backend"])) == 1
    curves = []
    groups: dict[Any, pd.DataFrame] = dict(iter(found.groupby(_KEYS, sort=False)))
    for key, part in groups.items():
        backend, num_replicas, _, revision = key
        label = f"N = {num_replicas}"
        if not is_one:
            label = f"{backend} {formats.TIMES}{num_replicas}"
        if revision:
            label = f"{revision[:7]}, {label}"
        curves.append(
            Curve(
                label=label,
                backend=backend,
                rows=part,
                is_hollow=bool(part["is_oversubscribed"].iloc[0]),
                failed=(failed or {}).get(key, ()),
            )
        )
    return curves


def _draw_curve(axes: Axes, curve: Curve, spent: str, width: float, look: Look) -> None:
    color = look.color(curve.backend)
    values = curve.by_run("value")
    x = np.median(curve.by_run(spent), axis=1)
    if values.shape[1] > 1:
        low, high = values.min(axis=1), values.max(axis=1)
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0, zorder=1)
    else:
        run = curve.rows
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


def draw_on(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    spent: str,
    x_label: str,
    write: Callable[[float], str],
    look: Look,
    y_limits: tuple[float, float] | None = None,
    heading: str = "",
) -> None:
    """Draws one panel; lines of the same colour get different widths."""
    widths = style.widths([curve.backend for curve in curves])
    for curve, width in zip(curves, widths, strict=True):
        _draw_curve(axes, curve, spent, width, look)
    axes.set_xlim(left=0)
    if y_limits is not None:
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


def draw_profiles(
    profiles: Sequence[tuple[str, str, Profile]],
    *,
    slug: str,
    title: str,
    description: str,
    x_label: str,
    write: Callable[[float], str],
) -> Markup:
    """Draws profiles, each with its label and backend, and pointwise bands."""

    def draw_on(axes: Axes) -> None:
        widths = style.widths([backend for _, backend, _ in profiles])
        for (label, backend, found), width in zip(profiles, widths, strict=True):
            color = style.PAGE.color(backend)
            if found.lows:
                band = functools.partial(axes.fill_between, step="pre", linewidth=0)
                band(found.thresholds, found.lows, found.highs, color=color, alpha=0.15)
            axes.step(
                found.thresholds,
                found.shares,
                where="pre",
                color=color,
                linewidth=width,
                label=label,
            )
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(x_label)
        axes.set_ylabel("fraction of runs")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS - 1))
        axes.xaxis.set_major_formatter(lambda value, _: style.short(write(value)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        style.write_legend(axes, -0.27)

    return svg.draw(
        (style.WIDTH, 200 + 13 * len(profiles)),
        draw_on,
        slug=slug,
        title=title,
        description=description,
    )
