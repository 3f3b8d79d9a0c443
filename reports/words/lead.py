"""The curve that stands for a study: that of its fastest backend, per scaling mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from results.figures.scaling import Point
    from results.records.models import ScalingMode


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
