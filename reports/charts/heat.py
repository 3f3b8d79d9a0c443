"""Step time by process and step: a slow row is a process, a slow column a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from reports.charts.drawing import svg
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

WIDTH, ROW_HEIGHT, FRAME = 310, 16, 44
MOST_COLUMNS: Final = 48
LEVELS: Final = (1.02, 1.05, 1.10, 1.25)
"""Cells that take this many times the median are drawn darker from one to the next."""
ALPHAS: Final = (0.25, 0.45, 0.7, 1.0)
OTHERS: Final = 0.08


def binned(times_sec: Sequence[Sequence[float]]) -> np.ndarray:
    """Means over equal numbers of steps, relative to the median of all cells."""
    number = min(len(of) for of in times_sec)
    table = np.array([of[:number] for of in times_sec], dtype=np.float64)
    per_column = -(-number // MOST_COLUMNS)
    starts = range(0, number, per_column)
    means = np.stack([table[:, k : k + per_column].mean(axis=1) for k in starts], 1)
    middle = float(np.median(means))
    # A clock that stands still makes steps of no duration.
    relative: np.ndarray = means / middle if middle > 0 else np.ones_like(means)
    return relative


def draw(
    times_sec: Sequence[Sequence[float]], *, series: int, name: str, slug: str
) -> Markup:
    """Draws a row per process; the darker, the slower."""
    cells = binned(times_sec)
    num_rows, num_columns = cells.shape
    num_steps = min(len(of) for of in times_sec)
    level = np.digitize(cells, LEVELS)
    width = num_steps / num_columns
    with svg.style():
        figure, axes = svg.new_axes(WIDTH, FRAME + ROW_HEIGHT * num_rows)
        for value, alpha in enumerate((OTHERS, *ALPHAS)):
            where = np.argwhere(level == value)
            if len(where):
                # One path per level: a path per cell would be most of the page.
                paths = [_cell(int(row), int(column), width) for row, column in where]
                axes.add_patch(
                    PathPatch(
                        Path.make_compound_path(*paths),
                        facecolor=svg.SERIES[series],
                        alpha=alpha,
                        linewidth=0,
                    )
                )
        axes.set_xlim(0, num_steps)
        axes.set_ylim(num_rows - 0.5, -0.5)
        axes.yaxis.set_major_locator(MaxNLocator(min(num_rows, 8), integer=True))
        axes.grid(visible=False)
        axes.set_xlabel("measured step")
        axes.set_ylabel("process")
        rows = cells.mean(axis=1)
        slowest = int(rows.argmax())
        return svg.inline(
            figure,
            slug=slug,
            title=f"Step time by process and step, {name}",
            description=(
                f"On average, process {slowest} is the slowest with "
                f"{formats.ratio(float(rows[slowest]))} of the median, and process "
                f"{int(rows.argmin())} the fastest with "
                f"{formats.ratio(float(rows.min()))}."
            ),
        )


def _cell(row: int, column: int, width: float) -> Path:
    left, top = column * width, row - 0.45
    corners = [(left, top), (left + width, top), (left + width, top + 0.9)]
    return Path([*corners, (left, top + 0.9), corners[0]], closed=True)
