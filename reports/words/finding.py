"""One finding of a study, as the verdict states it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import rich.console
    import rich.table

    from reports.view.view import View
    from results.figures.scaling import Point
    from results.records.models import ScalingMode


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding of the study."""

    figure: str  # The number that is shown large.
    interval: str  # Its interval in brackets, or why there is none.
    label: str  # A short name.
    sentence: str  # The whole statement with its interval.
    trial_ids: tuple[str, ...]  # The trials behind it.


def most_replicas(view: View) -> list[Point]:
    """Returns the most replicas of every backend and mode, in planned order.

    Those without a core each only where nothing else was measured.
    """
    chosen: list[Point] = []
    for mode in view.study.modes:
        for backend in view.study.backends:
            curve = [p for p in view.points_of(mode, backend) if p.throughput]
            fit = [p for p in curve if not p.is_oversubscribed] or curve
            chosen += [p for p in fit if p.num_replicas == fit[-1].num_replicas]
    return chosen


_WIDEST = 10_000


def columns_that_fit(
    columns: Sequence[str],
    dropped_first: Sequence[str],
    make_table: Callable[[Sequence[str]], rich.table.Table],
    console: rich.console.Console,
) -> tuple[str, ...]:
    """Returns the columns that a console has room for, in their order."""
    left = list(columns)
    options = console.options.update(max_width=_WIDEST)
    for name in dropped_first:
        table = make_table(left)
        if console.measure(table, options=options).maximum <= console.width:
            break
        if name in left:
            left.remove(name)
    return tuple(left)


def lead_curve(view: View, mode: ScalingMode) -> tuple[Point, ...]:
    """Returns the points of the backend that is fastest at its most replicas.

    Oversubscribed cases, and those measured beside load only, are no evidence on
    scaling and are left out.
    """
    curves = [
        [
            point
            for point in view.points_of(mode, backend)
            if point.throughput is not None
            and not point.is_oversubscribed
            and not point.throughput.is_disturbed
            and (
                point.is_baseline
                or (point.efficiency is not None and not point.efficiency.is_disturbed)
            )
        ]
        for backend in view.study.backends
    ]
    known = [
        curve for curve in curves if any(of.efficiency is not None for of in curve)
    ]
    best: Sequence[Point] = max(known, key=_size_and_throughput) if known else ()
    return tuple(best)


def _size_and_throughput(curve: Sequence[Point]) -> tuple[int, float]:
    last = curve[-1]
    assert last.throughput is not None
    return last.num_replicas, last.throughput.value


def lead_point(view: View) -> Point | None:
    """Returns the largest case of the first scaling mode that has an efficiency."""
    for mode in view.study.modes:
        curve = lead_curve(view, mode)
        if curve:
            return curve[-1]
    return None
