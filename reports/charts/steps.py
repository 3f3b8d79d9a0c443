"""How steps vary: boxes, shares of steps by their time, and a row per process."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from reports.charts import rows, style, svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.rows import Row
    from reports.charts.style import Look

MOST_DOTS: Final = 600
"""More steps than this are drawn as box plots only, to keep the page small."""
BOX_WIDTH: Final = 0.42
"""Of a box; rows are 1 apart."""
ECDF_WIDTH, ECDF_HEIGHT = 300, 215
NUM_QUANTILES: Final = 101
"""Of more steps than this, every line has only so many corners."""
MOST_OF_MEDIAN: Final = 3.0
"""Steps that take longer than this many times the longest median are counted only."""
MOST_COLUMNS: Final = 48
LEVELS: Final = (1.02, 1.05, 1.10, 1.25)
"""Cells that take this many times the median are drawn darker from one to the next."""
ALPHAS: Final = (0.08, 0.25, 0.45, 0.7, 1.0)


def cases_of(frame: pd.DataFrame, phase: str) -> list[Row]:
    """Returns the step times of each case in ms, a group per backend."""
    found = rows.select(frame, "steps")
    found = found[found["phase"] == phase]
    backends = list(dict.fromkeys(found["backend"]))
    keys = ["backend", "num_replicas", "per_replica_batch_size"]
    groups: dict[Any, pd.DataFrame] = dict(iter(found.groupby(keys, sort=False)))
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
    frame = pd.DataFrame(
        {
            "value": [dot for row in items for dot in row.dots],
            "place": np.repeat(places, [len(row.dots) for row in items]),
            "backend": [row.backend for row in items for _ in row.dots],
        }
    )
    is_few = len(frame) <= MOST_DOTS
    distance = frame["place"].drop_duplicates().sort_values().diff().min()
    with warnings.catch_warnings():
        # Seaborn 0.13 passes "vert" to matplotlib 3.11, which expects "orientation".
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        sns.boxplot(
            data=frame,
            x="value",
            y="place",
            hue="backend",
            palette={row.backend: look.color(row.backend) for row in items},
            orient="h",
            native_scale=True,
            dodge=False,
            # Seaborn scales widths by the least distance of two rows.
            width=BOX_WIDTH / (distance if distance > 0 else 1.0),
            fill=False,
            linewidth=1.2,
            legend=False,
            showfliers=not is_few,
            fliersize=2,
            ax=axes,
        )
    if is_few:
        lines = 0.3 + 0.05 * (frame.groupby("place").cumcount() % 3)
        for backend, part in frame.groupby("backend", sort=False):
            at = part["place"] + lines[part.index]
            style.draw_dots(axes, [*part["value"]], [*at], look.color(str(backend)))
    axes.set_xlabel(axis_label)
    rows.write_columns(axes, items, look)


def draw_shares(
    axes: Axes, items: Sequence[Row], *, look: Look, dashes: Sequence[str] = ()
) -> None:
    """Draws the share of steps that took at most so long; a line per row."""
    import seaborn as sns

    widths = [1.6] * len(dashes) or style.widths([row.backend for row in items])
    levels = np.linspace(0.0, 1.0, NUM_QUANTILES)
    longest = 0.0
    for row, width, dash in zip(items, widths, dashes or "-" * len(items), strict=True):
        times = np.asarray(row.dots)
        if len(times) > NUM_QUANTILES:  # each that is drawn was observed
            times = np.quantile(times, levels, method="inverted_cdf")
        longest = max(longest, float(times.max()))
        sns.ecdfplot(
            x=times,
            ax=axes,
            color=look.color(row.backend),
            linewidth=width,
            linestyle=dash,
            label=row.name,
        )
    most = MOST_OF_MEDIAN * max(float(np.median(row.dots)) for row in items)
    axes.set_xlim(0, min(longest, most) * 1.03 or 1.0)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: formats.percent(value))
    axes.set_ylabel("")
    axes.set_xlabel("step time in ms")


def draw_distribution(items: Sequence[Row], dashes: Sequence[str]) -> Markup:
    """Draws the steps of each row, in ms, as a line that is named beside its end."""
    medians = [float(np.median(row.dots)) for row in items]

    def draw_on(axes: Axes) -> None:
        draw_shares(axes, items, look=style.PAGE, dashes=dashes)
        # By duration, so that the order of the names is that of the lines.
        order = sorted(range(len(items)), key=lambda k: -medians[k])
        labels = [
            style.Label(
                f"{items[k].label}, {items[k].text}",
                (place + 0.5) / len(order),
                style.PAGE.color(items[k].backend),
            )
            for place, k in enumerate(order)
        ]
        style.write_labels(axes, labels, ECDF_HEIGHT, has_lines=False)

    described = []
    for row in items:
        low, middle, high = (
            formats.seconds(float(of) / 1000)
            for of in np.percentile(row.dots, (5, 50, 95))
        )
        name = row.label.replace("\n", ", ")
        described.append(f"{name}: median {middle}, nine tenths {low} to {high}")
    return svg.draw(
        (ECDF_WIDTH, ECDF_HEIGHT),
        draw_on,
        slug="ecdf",
        title="Distribution of step times",
        description=f"{'; '.join(described)}.",
    )


def binned(times_sec: Sequence[Sequence[float]]) -> np.ndarray:
    """Means over equal numbers of steps, relative to the median of all cells."""
    number = min(map(len, times_sec))
    table = np.array([of[:number] for of in times_sec], dtype=np.float64)
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
        axes.yaxis.set_major_locator(MaxNLocator(min(num_rows, 8), integer=True))
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
