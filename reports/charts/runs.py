"""Quality over training, and how steps vary: boxes, shares, and a row per process."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib import ticker
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from reports.charts import rows, style, svg
from reports.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.rows import Row
    from reports.charts.style import Look

MOST_TICKS: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
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


def curves_of(
    frame: pd.DataFrame,
    metric: str,
    failed: Mapping[str, tuple[float, ...]] | None = None,
) -> list[Curve]:
    selected = rows.select(frame, "learning")
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
            Curve(
                label=label,
                backend=first.backend,
                frame=part,
                is_hollow=bool(first.is_oversubscribed),
                failed=(failed or {}).get(str(case), ()),
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


MOST_DOTS: Final = 600
"""More steps than this are drawn as box plots only, to keep the page small."""
BOX_WIDTH: Final = 0.42
"""Of a box; rows are 1 apart."""
MOST_OF_MEDIAN: Final = 3.0
"""Steps that take longer than this many times the longest median are counted only."""
MOST_COLUMNS: Final = 48
LEVELS: Final = (1.02, 1.05, 1.10, 1.25)
"""Cells that take this many times the median are drawn darker from one to the next."""
ALPHAS: Final = (0.08, 0.25, 0.45, 0.7, 1.0)


def cases_of(frame: pd.DataFrame, phase: str) -> list[Row]:
    """Returns the step times of each case in ms, a group per backend."""
    selected = rows.select(frame, "steps")
    selected = selected[selected["phase"] == phase]
    backends = list(dict.fromkeys(selected["backend"]))
    keys = ["backend", "num_replicas", "per_replica_batch_size"]
    groups: dict[Any, pd.DataFrame] = dict(iter(selected.groupby(keys, sort=False)))
    return rows.most_replicas(
        [
            rows.Row(
                group=str(key[0]),
                label=rows.case_label(int(key[1]), int(key[2])),
                backend=str(key[0]),
                dots=tuple(1000 * groups[key]["value"]),
                text=formats.seconds(
                    float((1000 * groups[key]["value"]).median()) / 1000
                ),
                is_hollow=bool(groups[key]["is_oversubscribed"].iloc[0]),
                size=int(key[1]),
            )
            for key in sorted(groups, key=lambda k: (backends.index(k[0]), k[1], -k[2]))
        ]
    )


def draw_boxes(
    axes: Axes, items: Sequence[Row], *, axis_label: str, look: Look
) -> None:
    """Draws the ``dots`` of each row as a box, with the dots below if they are few."""
    import seaborn as sns  # with SciPy's statistics: half of what a table in text needs

    places, _ = rows.place(items)
    numbers = [len(row.dots) for row in items]
    is_few = sum(numbers) <= MOST_DOTS
    with warnings.catch_warnings():
        # Seaborn 0.13 passes "vert" to matplotlib 3.11, which expects "orientation".
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        sns.boxplot(
            x=[dot for row in items for dot in row.dots],
            y=np.repeat(places, numbers),
            hue=np.repeat([row.backend for row in items], numbers),
            palette={row.backend: look.color(row.backend) for row in items},
            orient="h",
            native_scale=True,
            dodge=False,
            # Seaborn scales widths by the least distance of two rows.
            width=BOX_WIDTH / min(np.diff(np.unique(places)), default=1.0),
            fill=False,
            linewidth=1.2,
            legend=False,
            showfliers=not is_few,
            fliersize=2,
            ax=axes,
        )
    for at, row in zip(places, items, strict=True) if is_few else ():
        lines = [at + 0.3 + 0.05 * (index % 3) for index in range(len(row.dots))]
        style.draw_dots(axes, row.dots, lines, look.color(row.backend))
    axes.set_xlabel(axis_label)
    rows.write_columns(axes, items, look)


def draw_shares(axes: Axes, items: Sequence[Row], look: Look) -> None:
    import seaborn as sns

    widths = style.widths([row.backend for row in items])
    for row, width in zip(items, widths, strict=True):
        color = look.color(row.backend)
        sns.ecdfplot(x=row.dots, ax=axes, color=color, linewidth=width, label=row.name)
    longest = max(max(row.dots) for row in items)
    most = MOST_OF_MEDIAN * max(float(np.median(row.dots)) for row in items)
    axes.set_xlim(0, min(longest, most) * 1.03 or 1.0)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    axes.set_ylabel("")
    axes.set_xlabel("step time in ms")


def binned(times_sec: Sequence[Sequence[float]]) -> np.ndarray:
    """Means over equal numbers of steps, relative to the median of all cells."""
    number = min(map(len, times_sec))
    table = np.array([times[:number] for times in times_sec], dtype=np.float64)
    per_column = -(-number // MOST_COLUMNS)
    starts = range(0, number, per_column)
    means = np.stack([table[:, k : k + per_column].mean(axis=1) for k in starts], 1)
    middle = float(np.median(means))
    # A clock that stands still makes steps of no duration.
    relative: np.ndarray = means / middle if middle > 0 else np.ones_like(means)
    return relative


def draw_processes(
    times_sec: Sequence[Sequence[float]], *, backend: str, name: str
) -> Markup:
    """Draws a row per process, the darker, the slower: a slow column is a moment."""
    cells = binned(times_sec)
    num_rows, num_columns = cells.shape
    num_steps = min(map(len, times_sec))
    level, width = np.digitize(cells, LEVELS), num_steps / num_columns

    def draw_on(axes: Axes) -> None:
        for value, alpha in enumerate(ALPHAS):
            # One path per level: a path per cell would be most of the page.
            corners = [
                np.asarray(Path.unit_rectangle().vertices) * (width, 0.9)
                + (column * width, row - 0.45)
                for row, column in np.argwhere(level == value)
            ]
            if corners:
                rectangle = Path.unit_rectangle().codes
                cell_paths = [Path(corner, rectangle) for corner in corners]
                path = Path.make_compound_path(*cell_paths)
                color = style.PAGE.color(backend)
                axes.add_patch(
                    PathPatch(path, facecolor=color, alpha=alpha, linewidth=0)
                )
        axes.set_xlim(0, num_steps)
        axes.set_ylim(num_rows - 0.5, -0.5)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(min(num_rows, 8), integer=True))
        axes.grid(visible=False)
        axes.set_xlabel("measured step")
        axes.set_ylabel("process")

    means = cells.mean(axis=1)
    slowest, fastest = int(means.argmax()), int(means.argmin())
    return svg.draw(
        (style.WIDTH, 44 + 16 * num_rows),
        draw_on,
        slug="heat",
        title=f"Step time by process and step, {name}",
        description=(
            f"On average, process {slowest} is the slowest with "
            f"{formats.ratio(float(means[slowest]))} of the median, and process "
            f"{fastest} the fastest with {formats.ratio(float(means[fastest]))}."
        ),
    )
