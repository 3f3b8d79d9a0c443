"""The points of the first screen: of each backend and mode its most replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.view.view import View
    from results.figures.scaling import Point


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
