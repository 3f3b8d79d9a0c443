"""Distributions of step times: boxes with the steps themselves, or their ECDF."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

import pandas as pd

from reports.charts import rows
from reports.charts.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from reports.charts.drawing.svg import Look
    from reports.charts.rows import Row

MOST_DOTS: Final = 600
"""More steps than this are drawn as box plots only, to keep the page small."""
WIDTH: Final = 0.42
"""Of a box; rows are 1 apart."""
ECDF_HEIGHT: Final = 225
ECDF_LEVELS: Final = 201
"""Of more steps than this, every line has only so many corners."""


def _frame(items: Sequence[Row]) -> pd.DataFrame:
    places = rows.place([row.group for row in items]).rows
    return pd.DataFrame(
        [
            (place, dot, row.backend)
            for place, row in zip(places, items, strict=True)
            for dot in row.dots
        ],
        columns=["place", "value", "backend"],
    )


def draw_boxes(
    axes: Axes, items: Sequence[Row], *, axis_label: str, look_: Look
) -> None:
    """Draws the ``dots`` of each row as a box, with the dots below if they are few."""
    import seaborn as sns  # with SciPy's statistics: half of what a table in text needs

    places = rows.place([row.group for row in items])
    frame = _frame(items)
    is_few = len(frame) <= MOST_DOTS
    with warnings.catch_warnings():
        # Seaborn 0.13 passes "vert" to matplotlib 3.11, which expects "orientation".
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        for backend, part in frame.groupby("backend", sort=False):
            color = look_.color(str(backend))
            # Seaborn scales widths by the least distance of two rows of the backend.
            distance = part["place"].drop_duplicates().sort_values().diff().min()
            sns.boxplot(
                data=part,
                x="value",
                y="place",
                orient="h",
                native_scale=True,
                width=WIDTH / (distance if distance > 0 else 1.0),
                fill=False,
                color=color,
                linecolor=color,
                linewidth=1.2,
                showfliers=not is_few,
                flierprops={
                    "marker": ".",
                    "markersize": 3,
                    "markeredgewidth": 0,
                    "markerfacecolor": color,
                },
                ax=axes,
            )
            if is_few:
                order = part.groupby("place").cumcount()
                axes.plot(
                    part["value"],
                    part["place"] + 0.3 + 0.05 * (order % 3),
                    linestyle="none",
                    marker=".",
                    markersize=2.6,
                    markeredgewidth=0,
                    color=color,
                )
    axes.set_xlabel(axis_label)
    rows.write_columns(
        axes,
        places,
        [row.label for row in items],
        [row.text for row in items],
        look=look_,
    )


def draw_ecdf(
    axes: Axes, items: Sequence[Row], *, axis_label: str, look_: Look
) -> None:
    """Draws the share of steps that took at most so long; a line per row."""
    import seaborn as sns

    seen: dict[str, int] = {}
    for row in items:
        number = seen[row.backend] = seen.get(row.backend, -1) + 1
        values = pd.Series(row.dots)
        if len(values) > ECDF_LEVELS:
            levels = [k / (ECDF_LEVELS - 1) for k in range(ECDF_LEVELS)]
            values = values.quantile(levels)
        sns.ecdfplot(
            x=values,
            ax=axes,
            color=look_.color(row.backend),
            linewidth=svg.width_of_line(number),
            label=row.name,
        )
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_ylabel("")
    axes.set_xlabel(axis_label)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.24),
        frameon=False,
        borderaxespad=0,
        handlelength=2.6,
    )
