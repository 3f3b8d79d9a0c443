"""What is drawn over replicas: rows of the tidy frame that are lines of one panel."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from reports.charts import limits
from reports.charts.drawing import look, tips
from reports.charts.quantities import EFFICIENCY, THROUGHPUT
from reports.view.view import series_of
from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from reports.charts.quantities import Quantity

MOST_LINES: Final = 7
"""More lines than this are drawn in several panels, or left out."""
_COLUMNS: Final = (
    *("kind", "mode", "backend", "num_replicas", "value", "low", "high", "n"),
    *("unit", "method", "is_baseline", "is_oversubscribed"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaCurve:
    """Rows that are one line, and how it is drawn."""

    # Of one quantity, scaling mode and backend, as ``rows_of`` returns them.
    rows: tuple[Any, ...]
    name: str  # In the description of the figure.
    series: int  # Index of its colour and marker.
    dash: str = "-"  # As matplotlib names it.
    label: str = ""  # Written at its end, with its last value; empty for none.
    prefix: str = ""  # What its tips begin with, such as the study.

    def of_kind(self, kind: str) -> Iterator[Any]:
        """Yields its rows of one kind."""
        return (row for row in self.rows if row.kind == kind)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes."""

    quantity: Quantity  # What is drawn.
    curves: tuple[ReplicaCurve, ...]  # At most ``MOST_LINES``.
    sizes: tuple[int, ...]  # Numbers of replicas on its axis, ascending.
    y_limits: tuple[float, float]  # Of the values; shared by the panels of a quantity.
    # Whether axes are logarithmic; of efficiency, only that of replicas.
    is_log: bool = False
    # Whether the axis of replicas begins at zero, not at the fewest.
    is_from_zero: bool = True
    heading: str = ""  # Above the axes; empty for none.

    @property
    def has_log_values(self) -> bool:
        """Whether the axis of values is logarithmic."""
        return self.is_log and self.quantity is not EFFICIENCY


def rows_of(frame: pd.DataFrame) -> tuple[Any, ...]:
    """Returns rows of the tidy frame as named tuples, replicas ascending."""
    ordered = frame[list(_COLUMNS)].sort_values("num_replicas", kind="stable")
    return tuple(ordered.itertuples(index=False))


def sizes_of(rows: pd.DataFrame) -> tuple[int, ...]:
    """Returns the numbers of replicas of some rows, ascending."""
    return tuple(sorted({int(n) for n in rows["num_replicas"]}))


def panels_of(frame: pd.DataFrame) -> list[list[str]]:
    """Returns the backends of each panel: at most ``MOST_LINES`` lines each."""
    found = list(dict.fromkeys(frame["backend"]))
    return [found[i : i + MOST_LINES] for i in range(0, len(found), MOST_LINES)]


def y_limits(
    rows: pd.DataFrame, quantity: Quantity, *, is_log: bool = False
) -> tuple[float, float]:
    """Returns limits that all panels of a quantity share; linear ones are from zero."""
    sizes = sizes_of(rows)
    anchors = [float(value) for value in rows["value"].dropna()]
    baselines = rows[(rows["kind"] == "estimate") & rows["is_baseline"]]
    anchors += [
        quantity.ideal(n, int(row.num_replicas), row.value)
        for row in rows_of(baselines)
        for n in sizes
    ]
    estimates = rows[rows["kind"] == "estimate"]
    ends = [*estimates["low"].dropna(), *estimates["high"].dropna()]
    if is_log and quantity is not EFFICIENCY:
        return limits.logarithmic(anchors or [1.0], ends)
    return limits.from_zero(anchors, ends)


def panel_of_mode(
    frame: pd.DataFrame,
    quantity: Quantity,
    mode: str,
    *,
    backends: Sequence[str],
    is_log: bool = False,
) -> Panel:
    """Returns the panel of a scaling mode: a line per backend."""
    rows = frame[frame["quantity"] == quantity.slug]
    shown = rows[rows["mode"] == mode]
    units = [unit for unit in shown["unit"] if unit]
    has_unit = quantity is THROUGHPUT and units
    return Panel(
        quantity=quantity,
        curves=tuple(
            ReplicaCurve(
                rows=rows_of(shown[shown["backend"] == backend]),
                name=backend,
                series=series_of(backend),
                dash=look.dash(mode),
            )
            for backend in backends
        ),
        sizes=sizes_of(frame[frame["mode"] == mode]),
        y_limits=y_limits(rows, quantity, is_log=is_log),
        is_log=is_log,
        is_from_zero=False,
        heading=f"{mode.capitalize()} scaling{f', {units[0]}' if has_unit else ''}",
    )


def tip_of(row: Any, quantity: Quantity, prefix: str = "") -> str:
    """Returns what an estimate of the frame says when it is pointed at."""
    replicas = formats.count(int(row.num_replicas), "replica")
    return tips.of_row(
        f"{prefix}{row.backend}, {row.mode} scaling, {replicas}: {quantity.slug}",
        row,
        quantity.write,
    )


def describe(panel: Panel) -> str:
    """Describes a panel in words."""
    write = panel.quantity.write
    parts = []
    ceilings: dict[str, None] = {}
    for curve in panel.curves:
        values = [
            f"{write(row.value)} at {formats.count(int(row.num_replicas), 'replica')}"
            + (" (oversubscribed)" if row.is_oversubscribed else "")
            for row in curve.of_kind("estimate")
        ]
        values += [
            f"crossed out at {formats.count(int(row.num_replicas), 'replica')}, since "
            f"it {row.method}"
            for row in curve.of_kind("crossed_out")
        ]
        if values:
            parts.append(f"{curve.name}: {', '.join(values)}")
        of = "" if panel.quantity is THROUGHPUT else f" of {curve.name}"
        for row in curve.of_kind("ceiling"):
            replicas = formats.count(int(row.num_replicas), "replica")
            ceilings[
                f"ceiling{of}, programs that never communicate: {write(row.value)} at "
                f"{replicas}"
            ] = None
    parts += ceilings
    return f"{'; '.join(parts)}." if parts else "No trial is ok."
