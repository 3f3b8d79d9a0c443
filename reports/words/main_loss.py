"""The largest loss of a study, its name in the verdict, and what to try against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from results.figures.lost_time import LostTime, Part
    from results.figures.scaling import Point

CAUSES = {
    "contention": "contention for memory and caches",
    "exposed_communication": "waiting for communication",
    "input": "waiting for input",
    "imbalance": "uneven replicas",
    "update": "the update",
    "computing": "more CPU time per example",
    "core_wait": "waiting for a core",
    "unexplained": "unexplained waiting",
}
REMEDIES = {
    "contention": "try cores with memory bandwidth of their own",
    "exposed_communication": "try larger batches per replica",
    "input": "try a faster input pipeline",
    "imbalance": "try equal work per replica",
    "update": "try a sharded update",
}
ABOUT_NOTHING = frozenset({"alone", "ideal", "step"})
"""Parts of a step that are no loss."""


def loss_of(view: View, point: Point) -> LostTime | None:
    """Returns the parts of a point's step: from controls, else from its turns."""
    for item in view.explained:
        if item.case.case_id == point.case.case_id and item.lost is not None:
            return item.lost
    for recorded in view.recorded:
        if recorded.case.case_id == point.case.case_id:
            return recorded.lost
    return None


def largest(lost: LostTime) -> Part | None:
    """Returns the largest part that is a loss, unless its interval includes 0."""
    parts = [
        part
        for part in lost.parts
        if part.name not in ABOUT_NOTHING and (part.value_sec or 0.0) > 0
    ]
    if not parts:
        return None
    largest = max(parts, key=lambda part: part.value_sec or 0.0)
    return None if largest.low_sec is not None and largest.low_sec <= 0 else largest


def worst(points: Sequence[Point]) -> Point:
    """Returns the point of the lowest efficiency."""
    return min(points, key=lambda p: p.efficiency.value if p.efficiency else 1.0)
