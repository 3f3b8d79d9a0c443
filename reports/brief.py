"""The verdict of the first screen: what a study found, in at most 45 words.

How well it scales, at which N, weak and strong; the largest cause of loss with its
share; how sure that is; what would settle the rest. Numbers in brackets are the ends of
95 % intervals. ``reports/verdict.py`` has every finding in full.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from reports import formats, marks, next_step, trust, verdict
from reports.marks import Level
from results.records import Order, ScalingMode, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.marks import Mark
    from reports.view import View
    from results.lost_time import LostTime, Part
    from results.scaling import Comparison, Point

MOST_WORDS = 45
_LONGEST_REASON = 20  # words
_LARGEST = 1000.0
"""An efficiency above this is that of damaged records: its digits say nothing."""

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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """The verdict of the first screen.

    Attributes:
      trust: ``Reliable``, or what limits it; empty if nothing was measured.
      level: The worst of the marks.
      sentences: What was found.
      next_step: What would settle the rest; can be empty.
    """

    trust: str
    level: Level
    sentences: tuple[str, ...]
    next_step: str

    @property
    def text(self) -> str:
        """All of it, in at most ``MOST_WORDS`` words."""
        parts = [f"{self.trust}:" if self.trust else "", *self.sentences]
        parts.append(f"Next: {self.next_step}." if self.next_step else "")
        return " ".join(part for part in parts if part)


def num_words(text: str) -> int:
    """Counts what is between spaces, hard ones included."""
    return len(text.split())


def judge(view: View) -> Brief:
    """Returns the verdict on a study in at most ``MOST_WORDS`` words."""
    found = marks.of_view(view)
    level = marks.worst(found)
    unfit = trust.why_unfit(view)
    if unfit:
        return _only(unfit, Level.BAD)
    if not view.is_anything_measured:
        return _only(nothing_measured(view), Level.BAD)
    points, compared = verdict.findings_of_leader(view)
    if not points:
        text = "Throughput was measured; there is nothing to compare it with."
        return _only(text, level, next_step="--replicas with a baseline and more")
    return _shortest(
        level,
        trust_words(found),
        [
            _scaling_variants(points),
            _cause_variants(view, points),
            _comparison_variants(points, compared),
        ],
        _next(view, level, points, compared),
    )


def _only(text: str, level: Level, next_step: str = "") -> Brief:
    return Brief(trust="", level=level, sentences=(text,), next_step=next_step)


def trust_words(found: Sequence[Mark]) -> str:
    """Says how far to trust the figures, naming what limits it."""
    level = marks.worst(tuple(found))
    if level is Level.OK:
        return "Reliable"
    names = ", ".join(mark.name.lower() for mark in found if mark.level is level)
    return f"{'Not reliable' if level is Level.BAD else 'With caution'} ({names})"


def nothing_measured(view: View) -> str:
    """Says why nothing was measured: the commonest reason of the failures."""
    planned = view.study.planned
    failed = [
        entry.reason.rstrip(".")
        for entry in planned
        if entry.state in {status.value for status in TrialStatus}
    ]
    if not failed:
        number = formats.count(len(planned), "planned trial")
        return f"Nothing was measured: none of {number} is ok."
    # The first of equally frequent ones, so that the page is the same in every run.
    ((reason, times_seen),) = collections.Counter(failed).most_common(1)
    words = reason.split()
    if len(words) > _LONGEST_REASON:
        reason = " ".join(words[:_LONGEST_REASON]) + "…"
    of = formats.count(len(planned), "planned trial")
    return f"Nothing was measured: {reason} ({times_seen} of {of})."


def _shortest(
    level: Level, words: str, variants: list[list[str]], following: str
) -> Brief:
    """Takes the long variants, and shortens from the last until the words fit."""
    chosen = [0] * len(variants)

    def make() -> Brief:
        sentences = (
            of[index] for of, index in zip(variants, chosen, strict=True) if of
        )
        return Brief(
            trust=words,
            level=level,
            sentences=tuple(text for text in sentences if text),
            next_step=following,
        )

    while num_words(make().text) > MOST_WORDS:
        longer = [k for k, of in enumerate(variants) if chosen[k] + 1 < len(of)]
        if not longer:
            break
        chosen[longer[-1]] += 1
    return make()


def _efficiency_text(point: Point, *, has_interval: bool) -> str:
    efficiency = point.efficiency
    assert efficiency is not None
    is_shown = has_interval and efficiency.low is not None
    if not is_shown or efficiency.high is None or efficiency.high > _LARGEST:
        return formats.percent(efficiency.value)
    # As many decimals as it takes for the ends to differ, but not more than one.
    ends = (100 * (efficiency.low or 0.0), 100 * efficiency.high)
    decimals = int(f"{ends[0]:.0f}" == f"{ends[1]:.0f}")
    value, low, high = (
        f"{number:.{decimals}f}" for number in (100 * efficiency.value, *ends)
    )
    text = f"{value}{formats.THIN_SPACE}%"
    return text if low == high else f"{text} ({low}{formats.ABSENT}{high})"


def _scaling_variants(points: Sequence[Point]) -> list[str]:
    backend = points[0].backend

    def write(*, has_interval: bool) -> str:
        parts: list[str] = []
        before = None
        for point in points:
            part = _efficiency_text(point, has_interval=has_interval)
            if not parts:
                part += " efficiency"
            if point.num_replicas != before:
                part += f" on {formats.count(point.num_replicas, 'replica')}"
            before = point.num_replicas
            parts.append(f"{part} in {point.mode.value} scaling")
        if len(parts) > 1:  # only once
            parts = [*(p.removesuffix(" scaling") for p in parts[:-1]), parts[-1]]
        return f"{backend} keeps {' and '.join(parts)}."

    return [write(has_interval=True), write(has_interval=False)]


def loss_of(view: View, point: Point) -> LostTime | None:
    """Returns the parts of a point's step: from controls, else from its turns."""
    for item in view.explained:
        if item.case.case_id == point.case.case_id and item.lost is not None:
            return item.lost
    for recorded in view.recorded:
        if recorded.case.case_id == point.case.case_id:
            return recorded.lost
    return None


def largest_loss(lost: LostTime) -> Part | None:
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


def _worst(points: Sequence[Point]) -> Point:
    return min(points, key=lambda p: p.efficiency.value if p.efficiency else 1.0)


def _cause_variants(view: View, points: Sequence[Point]) -> list[str]:
    point = _worst(points)
    lost = loss_of(view, point)
    mode = f" ({point.mode.value})" if len(points) > 1 else ""
    if lost is None:
        return ["What limits it was not recorded.", ""]
    part = largest_loss(lost)
    if part is None:
        return ["No single cause of loss stands out.", ""]
    share = (part.value_sec or 0.0) / (lost.step.value_sec or 1.0)
    cause = CAUSES[part.name]
    return [
        f"Largest loss{mode}: {cause}, {formats.percent(share)} of a step.",
        f"Largest loss{mode}: {cause}, {formats.percent(share)}.",
    ]


def _comparison_variants(
    points: Sequence[Point], compared: Sequence[Comparison]
) -> list[str]:
    same = [item for item in compared if points[0].mode in item.modes]
    if not same:
        return []
    backend = points[0].backend
    ratios = []
    for item in same:
        assert item.ratio is not None
        is_first = item.first.spec.backend == backend
        other = item.second if is_first else item.first
        ratios.append((item.ratio, is_first, other.spec.backend))
    conclusive = [
        (ratio, is_first) for ratio, is_first, _ in ratios if ratio.excludes(1.0)
    ]
    wins = [is_first == (ratio.value > 1) for ratio, is_first in conclusive]
    if len(same) > 1:
        if len(wins) == len(same) and all(wins):
            return [f"It is the fastest of {len(same) + 1} backends."]
        num_faster, num_slower = wins.count(False), wins.count(True)
        open_ones = len(same) - len(wins)
        counted = (
            f"Of {len(same)} others, {num_slower} are slower, {num_faster} faster, "
            f"{open_ones} inconclusive."
        )
        return [counted, ""]
    ratio, is_first, other_name = ratios[0]
    if not conclusive:
        return [f"Faster than {other_name}? Inconclusive."]
    value = ratio.value if is_first else 1 / ratio.value
    text = f"{formats.times(value)} as fast as {other_name}."
    return [f"It is {text}", text]


def _next(
    view: View,
    level: Level,
    points: Sequence[Point],
    compared: Sequence[Comparison],
) -> str:
    """Says what would settle what is open, the most important first."""
    target = view.study.plan.measuring.efficiency_target
    known = [p.efficiency for p in points if p.efficiency is not None]
    is_known = any(of.is_conclusive and of.has_interval for of in known)
    candidates = [
        ""
        if level is not Level.BAD or _is_quiet(view)
        else "repeat on a quiet machine",
        "" if is_known else f"--repeats {marks.ENOUGH_REPETITIONS} for intervals",
        *(next_step.for_comparison(view, item) for item in compared),
        *(next_step.for_efficiency(view, point, target) for point in points),
        "" if view.explained else f"{_controls(view)} splits the loss",
        _remedy(view, points),
        _wider(view, points),
    ]
    return next(text for text in candidates if text)


def _remedy(view: View, points: Sequence[Point]) -> str:
    """Returns what to try against the largest loss that a control has shown."""
    case_id = _worst(points).case.case_id
    for item in view.explained:
        if item.case.case_id == case_id and item.lost is not None:
            part = largest_loss(item.lost)
            return "" if part is None else REMEDIES.get(part.name, "")
    return ""


def _wider(view: View, points: Sequence[Point]) -> str:
    """Returns what the study could measure beyond what it has."""
    if ScalingMode.STRONG not in view.study.modes:
        return "strong scaling"
    largest = max(points, key=lambda point: point.num_replicas)
    (entry, *_) = largest.case.ok_entries
    if entry.trial is None or entry.trial.env is None:
        return "more replicas"
    free = entry.trial.env.placement.num_available_cores
    if largest.num_replicas * largest.case.spec.cores_per_replica < free:
        return f"more replicas, of {free} cores"
    return "a machine with more cores"


def _controls(view: View) -> str:
    """Returns the options that measure controls; only a relay has them."""
    is_relay = view.study.plan.measuring.order is Order.RELAY
    return "--controls all" if is_relay else "--order relay --controls all"


def _is_quiet(view: View) -> bool:
    """Whether nothing about the machine is bad."""
    return not any(
        mark.level is Level.BAD and mark.name in ("Quiet machine", "Drift")
        for mark in marks.of_view(view)
    )
