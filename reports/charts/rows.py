"""Charts of rows: labels at the left, marks, values at the right, and headings.

Ratios, the parts of steps, how steps vary, and a row per process.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib import ticker
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from reports.charts import style, svg
from reports.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from reports.charts.style import Look

ROW_HEIGHT: Final = 21
FRAME_HEIGHT: Final = 50
MOST_ROWS: Final = 20
"""More rows than this are for the table below a figure."""
COLUMN_GAP: Final = 6
MOST_TICKS: Final = 4
BAR_HEIGHT: Final = 0.6
PART_SERIES: Final = {
    **dict.fromkeys(("computing", "contention"), 3),
    **dict.fromkeys(("run_queue_delay", "update"), 5),
    **dict.fromkeys(("idle", "imbalance"), 6),
    "exposed_communication": 8,
    "input": 2,
}
"""Colours of the parts of a step; the first has its backend's, others are hollow."""
WHOLE: Final = ("alone", "ideal")
"""The part that each step begins with."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    group: str  # Rows of one group stand together under it.
    label: str  # Name of the row within its group; in the column at the left.
    backend: str  # For colour and marker.
    value: float = 1.0  # Position of the marker.
    low: float | None = None  # Lower end of the interval, or None.
    high: float | None = None  # Upper end of the interval, or None.
    dots: tuple[float, ...] = ()  # Raw values.
    text: str = ""  # The value in words; in the column at the right.
    is_hollow: bool = False  # Whether the row is no evidence (oversubscribed).
    size: int = 0  # Replicas: of too many rows, those of most replicas are drawn.
    # Of a step: name, value and tip of each part, one after the other.
    parts: tuple[tuple[str, float, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.group}, {self.label}"


def select(frame: pd.DataFrame, figure: str) -> pd.DataFrame:
    selected = frame[frame["figure"] == figure]
    if selected.empty:
        present = ", ".join(dict.fromkeys(frame["figure"])) or "nothing"
        raise ValueError(
            f"the frame has no rows of figure {figure!r}, only of {present}: pass "
            "results.figures.frame.points_frame(study) of a study that measured it"
        )
    return selected


def case_label(num_replicas: int, per_replica_batch_size: int) -> str:
    return f"{num_replicas} {formats.TIMES} {per_replica_batch_size}"


def most_replicas(rows: Sequence[Row]) -> list[Row]:
    """Returns at most twenty rows, those of most replicas, in their own order."""
    ranked = sorted(
        range(len(rows)), key=lambda i: (rows[i].is_hollow, -rows[i].size, i)
    )
    return [rows[i] for i in sorted(ranked[:MOST_ROWS])]


def ratios(frame: pd.DataFrame) -> list[Row]:
    selected = select(frame, "forest").sort_values("num_replicas", kind="stable")
    rows = []
    drawn: Any
    for _, drawn in selected.groupby(["backend", "other_backend"], sort=False):
        for row in drawn.itertuples():
            modes = "" if " and " in row.mode else f", {row.mode}"
            rows.append(
                Row(
                    group=f"{row.backend} / {row.other_backend}",
                    label=f"N = {row.num_replicas}{modes}",
                    backend=row.backend,
                    value=row.value,
                    low=known(row.low),
                    high=known(row.high),
                    text=formats.times(row.value),
                    is_hollow=bool(row.is_oversubscribed),
                    size=int(row.num_replicas),
                )
            )
    return most_replicas(rows)


def splits(frame: pd.DataFrame, tip: Callable[[Any], str] = lambda _: "") -> list[Row]:
    """Returns a row per case whose step is split, in ms; ``tip`` is of a part."""
    selected = select(frame, "waterfall")
    rows = []
    part: Any
    for _, part in selected.groupby("case", sort=False):
        *drawn, whole = part.itertuples()
        rows.append(
            Row(
                group=whole.backend,
                label=case_label(whole.num_replicas, whole.per_replica_batch_size),
                backend=whole.backend,
                is_hollow=bool(whole.is_oversubscribed),
                text=f"{formats.significant(1000 * whole.value)} ms",
                size=int(whole.num_replicas),
                parts=tuple(
                    (row.quantity, 1000 * row.value, tip(row)) for row in drawn
                ),
            )
        )
    return rows


def known(value: float) -> float | None:
    """Returns None for a value that a frame does not have."""
    return value if value == value else None  # noqa: PLR0124  # not a number


def place(rows: Sequence[Row]) -> tuple[list[int], dict[int, str]]:
    """Returns where rows and headings of groups lie, from 0 downwards."""
    places: list[int] = []
    headings: dict[int, str] = {}
    for group, members in itertools.groupby(rows, key=lambda row: row.group):
        headings[len(places) + len(headings)] = group
        places += [len(places) + len(headings) + k for k, _ in enumerate(members)]
    return places, headings


def size_of(rows: Sequence[Row]) -> tuple[float, float]:
    return style.WIDTH, FRAME_HEIGHT + ROW_HEIGHT * (place(rows)[0][-1] + 1)


def write_columns(
    axes: Axes, rows: Sequence[Row], look: Look, reference: float | None = None
) -> None:
    """Writes labels, values, headings and grid; call after x limits are set."""
    places, headings = place(rows)
    number = places[-1] + 1
    axes.set_ylim(number - 0.4, -0.6)
    axes.set_yticks(places, [style.short(row.label) for row in rows])
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.tick_params(axis="y", length=0, pad=COLUMN_GAP, labelcolor=look.ink)
    axes.grid(visible=False)
    axes.set_ylabel("")
    write = functools.partial(
        axes.annotate,
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="left",
        va="center",
        color=look.ink,
    )
    for at, row in zip(places, rows, strict=True):
        write(row.text, (1.0, at), xytext=(COLUMN_GAP, 0), annotation_clip=False)
    widths = [text.get_window_extent().width for text in axes.get_yticklabels()]
    dots_per_point = axes.get_figure(root=True).dpi / style.POINTS_PER_INCH  # type: ignore[union-attr]
    left = -max(widths, default=0.0) / dots_per_point - COLUMN_GAP
    for at, heading in headings.items():
        write(heading, (0.0, at), xytext=(left, -1), weight="bold")
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    for before, after in itertools.pairwise([*headings, number]):
        span = before + 0.5, after - 0.5
        axes.vlines(ticks, *span, color=look.grid, linewidth=0.8, zorder=0)
        if reference is not None:
            axes.vlines([reference], *span, color=look.muted, linewidth=1.1, zorder=1)


def draw_ratios(axes: Axes, rows: Sequence[Row], look: Look) -> None:
    for at, row in zip(place(rows)[0], rows, strict=True):
        if row.low is not None and row.high is not None:
            color = look.color(row.backend)
            axes.hlines(at, row.low, row.high, color=color, linewidth=1.6, zorder=3)
        spot = row.value, at, series_of(row.backend)
        style.draw_marker(axes, *spot, look, is_hollow=row.is_hollow)
    ends = [end for row in rows for end in (row.low, row.high) if end is not None]
    axes.set_xlim(style.symmetric([1.0, *(row.value for row in rows)], ends))
    style.set_ratio_log(axes)
    axes.set_xlabel("ratio of throughput (1: equally fast)")
    write_columns(axes, rows, look, reference=1.0)


def draw_splits(axes: Axes, rows: Sequence[Row], look: Look) -> None:
    """Draws steps on one axis, part after part; a negative one leads back, hollow."""
    reached = [0.0]
    for at, row in zip(place(rows)[0], rows, strict=True):
        end = 0.0
        for name, value, tip in row.parts:
            series = PART_SERIES.get(name)
            color = look.muted if series is None else look.series[series]
            is_hollow = value < 0 or (series is None and name not in WHOLE)
            color = look.color(row.backend) if name in WHOLE else color
            (bar,) = axes.barh(
                at,
                value,
                left=end,
                height=BAR_HEIGHT / (2 if value < 0 else 1),
                facecolor=look.paper if is_hollow else color,
                edgecolor=color if is_hollow else look.paper,
                linewidth=1.0 if is_hollow else 0.6,
                zorder=3 if value < 0 else 2,
            )
            svg.attach(bar, tip)
            end += value
            reached.append(end)
    left, right = min(reached), max(reached)
    axes.set_xlim(left, right + 0.02 * (right - left))
    style.set_ticks(axes, "x", MOST_TICKS)
    axes.set_xlabel("ms per step")
    write_columns(axes, rows, look)


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
    selected = select(frame, "steps")
    selected = selected[selected["phase"] == phase]
    backends = list(dict.fromkeys(selected["backend"]))
    keys = ["backend", "num_replicas", "per_replica_batch_size"]
    groups: dict[Any, pd.DataFrame] = dict(iter(selected.groupby(keys, sort=False)))
    return most_replicas(
        [
            Row(
                group=str(key[0]),
                label=case_label(int(key[1]), int(key[2])),
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

    places, _ = place(items)
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
    write_columns(axes, items, look)


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
