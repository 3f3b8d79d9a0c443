"""What a study says of its largest loss, and what to try against it.

Nothing is said where nothing is lost: a cause and an advice need an efficiency whose
interval is below 1, and a part that is most of the loss
(``results/figures/main_loss.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reports.words import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from results.figures.lost_time import LostTime
    from results.figures.scaling import Point
    from results.statistics.estimates import Estimate

CAUSES: Final = {
    "contention": "contention for memory and caches",
    "exposed_communication": "waiting for communication",
    "input": "waiting for input",
    "imbalance": "uneven replicas",
    "update": "the update",
    "computing": "more CPU time per example",
    "core_wait": "waiting for a core",
    "idle": "cores without work",
}
REMEDIES: Final = {
    "contention": "try cores with memory bandwidth of their own",
    "exposed_communication": "try larger batches per replica",
    "input": "try a faster input pipeline",
    "imbalance": "try equal work per replica",
    "update": "try a sharded update",
}
"""By parts that a control has shown; what turns record is too coarse for an advice."""


def loss_of(view: View, point: Point) -> LostTime | None:
    """Returns the parts of a point's step: from controls, else from its turns."""
    for item in view.explained:
        if item.case.case_id == point.case.case_id and item.lost is not None:
            return item.lost
    for recorded in view.recorded:
        same = recorded.case.case_id == point.case.case_id
        if same and recorded.mode is point.mode:
            return recorded.lost
    return None


def is_lost(efficiency: Estimate | None) -> bool:
    """Whether the interval of an efficiency shows that time is lost."""
    return efficiency is not None and efficiency.value < 1 and efficiency.excludes(1.0)


def worst(points: Sequence[Point]) -> Point:
    """Returns the point of the lowest efficiency."""
    return min(points, key=lambda p: p.efficiency.value if p.efficiency else 1.0)


def remedy(view: View, points: Sequence[Point]) -> str:
    """Returns what to try against the cause that a control has shown, or nothing."""
    point = worst(points)
    lost = loss_of(view, point)
    if lost is None or not is_lost(point.efficiency):
        return ""
    return REMEDIES.get(lost.main_loss, "")


def sentence(view: View, points: Sequence[Point]) -> str:
    """Says what most of the time is lost to, at the lowest efficiency of a backend.

    Or that nothing is lost, that it was not recorded, or that it is not explained.
    """
    point = worst(points)
    efficiency = point.efficiency
    if not is_lost(efficiency):
        is_below = efficiency is not None and efficiency.value < 1
        text = f"Whether {point.backend} loses time is inconclusive."
        return text if is_below else ""
    lost = loss_of(view, point)
    if lost is None:  # nobody can say, of a program of the user's
        return "Causes were not recorded." if view.study.program is None else ""
    mode = f" in {point.mode.value} scaling" if len(points) > 1 else ""
    share = lost.lost.share
    if share is None or share.low is None:
        return "One generation tells no cause of lost time."
    whole = formats.estimate(share, formats.percent)
    if not lost.main_loss:
        return (
            f"{point.backend} loses {whole} of a step{mode}; no single cause is shown"
            " to be most of it."
        )
    part = lost.part(lost.main_loss)
    assert part.share is not None
    return (
        f"Most of what {point.backend} loses{mode}: {CAUSES[part.name]},"
        f" {formats.estimate(part.share, formats.percent)} of a step."
    )
