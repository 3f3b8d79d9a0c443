"""The trust strip: what a reader must know before believing a figure.

Each mark is ok, caution or bad, with its reason. A mark that is not ok changes the
words of the verdict (``reports/words/brief.py``).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

from reports.words import formats, trust, verdict
from results.figures import relay, scaling
from results.records.models import Evidence, Order
from results.study import matching

if TYPE_CHECKING:
    from reports.view.view import View
    from results.figures.scaling import Point
    from results.records.models import Environment

ENOUGH_REPETITIONS = 4
MANY = 0.2
"""More failed or disturbed trials than this fraction are bad."""
SMALL_DRIFT, LARGE_DRIFT = 0.10, 0.25
FINE, COARSE = 0.06, 0.20
"""Half an interval, relative to its figure, up to which a study resolves what its
reader asks (the median of a default relay is 4 %), and above which it resolves little.
"""


SLOW_TURNS = 0.03
"""By which efficiencies of total time may be below those of typical turns."""


class Level(enum.Enum):
    """How far a mark limits trust, the worst last."""

    OK = "ok"
    CAUTION = "caution"
    BAD = "bad"


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """One thing to know."""

    name: str  # What was looked at.
    level: Level  # How it is.
    reason: str  # Why, in a few words.


def of_view(view: View) -> tuple[Mark, ...]:
    """Returns all marks, in reading order."""
    return (
        *_evidence(view),
        _design(view),
        _repetitions(view),
        *_plausibility(view),
        *_resolution(view),
        _quiet(view),
        _drift(view),
        _failures(view),
        _oversubscription(view),
    )


def worst(found: tuple[Mark, ...]) -> Level:
    """Returns the worst level."""
    levels = list(Level)
    return max((mark.level for mark in found), key=levels.index)


def _evidence(view: View) -> tuple[Mark, ...]:
    """Returns how good the evidence of a program of the user's is; else nothing."""
    found = trust.grade(view.study)
    if found is None:
        return ()
    kind, reason = found
    level = Level.OK if kind in (None, Evidence.WINDOW) else Level.CAUTION
    return (Mark("Evidence", level, reason),)


def _design(view: View) -> Mark:
    name = "Design"
    broken = matching.agreements_of(view.study).broken
    if broken:
        return Mark(
            name,
            Level.BAD,
            f"{broken[0].second.spec.backend} does not do the same work",
        )
    if view.study.plan.measuring.order is not Order.RELAY:
        return Mark(
            name, Level.CAUTION, "trials one after another: drift is in the ratios"
        )
    twin = relay.twin_of(view.study)
    if twin is None:
        return Mark(name, Level.CAUTION, "in turns, without an A/A control")
    ratio = formats.estimate(twin.ratio, formats.times)
    if twin.differs or twin.ratio.excludes(1.0):
        # Of twenty twins, one is outside its 95 % interval by chance.
        level = Level.BAD if twin.differs else Level.CAUTION
        return Mark(name, level, f"one case, measured twice, differs: {ratio}")
    return Mark(name, Level.OK, f"cases take turns; one, measured twice: {ratio}")


def _repetitions(view: View) -> Mark:
    counts = [len(c.shown_entries) for c in view.study.cases if c.shown_entries]
    is_relay = view.study.plan.measuring.order is Order.RELAY
    what = "run" if is_relay else "repetition"
    fewest, most = min(counts, default=0), max(counts, default=0)
    reason = formats.count(fewest, what)
    if fewest < most:
        reason = f"{fewest} to {most} {what}s"
    level = Level.OK
    if fewest < ENOUGH_REPETITIONS:
        level, reason = Level.CAUTION, f"{reason}: wide intervals"
    if most <= 1:
        level = Level.BAD
        reason = f"one {what}: no interval" if fewest else "nothing measured"
    return Mark("Sample", level, reason)


def _resolution(view: View) -> tuple[Mark, ...]:
    """Returns how finely the figures of the first screen are known, where any has one.

    The twin counts with its distance from 1 as well: equal programs differ by that.
    """
    points = verdict.most_replicas(view)
    shown = [p.efficiency for p in points if p.efficiency]
    halves = [
        (found.high - found.low) / 2 / found.value
        for found in shown
        if found.low is not None and found.high is not None
    ]
    if not halves:
        return ()
    widest = round(max(halves), 2)  # as it is shown
    reason = f"efficiencies within {formats.percent(widest)} to either side"
    twin = relay.twin_of(view.study)
    if twin is not None:
        apart = round(abs(math.log(twin.ratio.value)), 2)
        if apart > max(FINE, widest):
            widest = apart
            reason = f"equal programs are {formats.percent(apart)} apart"
    level = Level.OK
    if widest > FINE:
        level = Level.BAD if widest > COARSE else Level.CAUTION
        reason += ": coarse"
    hidden = max(map(_hidden, points), default=0.0)
    if hidden > SLOW_TURNS:
        reason += (
            f"; of total time {formats.percent(hidden)} lower: some blocks are much"
            " slower"
        )
        level = Level.CAUTION if level is Level.OK else level
    return (Mark("Resolution", level, reason),)


def _plausibility(view: View) -> tuple[Mark, ...]:
    """Returns a failed check where an efficiency is above what is possible."""
    number = sum(scaling.is_implausible(point.efficiency) for point in view.points)
    if not number:
        return ()
    counted = formats.count(number, "efficiency", "efficiencies")
    reason = f"{counted} above {formats.percent(scaling.MOST_EFFICIENT)}"
    return (Mark("Plausibility", Level.BAD, reason),)


def _hidden(point: Point) -> float:
    """Returns by which part an efficiency of total time is below that of turns."""
    if point.efficiency is None or point.baseline is None:
        return 0.0
    return scaling.hidden_by_slow_turns(point.case, point.baseline) or 0.0


def _environments(view: View) -> list[Environment]:
    return [
        entry.trial.env
        for entry in view.study.planned
        if entry.trial is not None and entry.trial.env is not None
    ]


def _quiet(view: View) -> Mark:
    name = "Quiet machine"
    found = relay.load_of_study(view.study)
    if view.study.plan.measuring.order is Order.RELAY:
        counts = relay.count_turns(view.study)
        # In numbers: less than half a per cent would be 0 %.
        reason = f"{counts.num_void} of {counts.num_turns} blocks discarded"
        if not counts.num_void:
            reason = "no block was discarded"
        level = Level.CAUTION if counts.busy else Level.OK
        if any(case.is_disturbed for case in view.study.cases):
            return Mark(name, Level.BAD, f"{reason}: no evidence")
        if counts.is_unfit and view.study.plan.measuring.gate is not None:
            return Mark(name, Level.BAD, reason)
        reason = counts.busy or reason
        if found.num_unknown:
            level, reason = Level.CAUTION, f"{reason}; {trust.load_text(found)}"
        return Mark(name, level, reason)
    level = Level.CAUTION if found.num_busy or found.num_unknown else Level.OK
    if found.num_busy > MANY * (found.num_all - found.num_unknown):
        level = Level.BAD
    return Mark(name, level, trust.load_text(found))


def _drift(view: View) -> Mark:
    name = "Drift"
    fingerprints = {env.fingerprint for env in _environments(view)}
    if len(fingerprints) > 1:
        reason = f"{len(fingerprints)} different environments"
        return Mark(name, Level.BAD, reason)
    found = trust.of_entries(view, view.study.planned)
    if found is None:
        return Mark(name, Level.CAUTION, "speed was not recorded")
    moved = found.of_medians
    reason = f"speed of the machine moved by {formats.percent(moved)}"
    if moved <= SMALL_DRIFT:
        return Mark(name, Level.OK, reason)
    if view.study.plan.measuring.order is Order.RELAY:
        return Mark(name, Level.CAUTION, f"{reason}: rates move with it, ratios do not")
    level = Level.BAD if moved > LARGE_DRIFT else Level.CAUTION
    return Mark(name, level, reason)


def _failures(view: View) -> Mark:
    planned = view.study.planned
    num_missing = sum(not entry.is_measured for entry in planned)
    if not num_missing:
        num_disturbed = sum(entry.is_disturbed for entry in planned)
        reason = f"all {formats.count(len(planned), 'trial')} ok"
        if num_disturbed:
            reason = f"{num_disturbed} of {len(planned)} trials beside load only"
        return Mark("Failures", Level.OK, reason)
    reason = f"{num_missing} of {formats.count(len(planned), 'trial')} gave no number"
    level = Level.BAD if num_missing > MANY * len(planned) else Level.CAUTION
    return Mark("Failures", level, reason)


def _oversubscription(view: View) -> Mark:
    name = "Cores"
    beyond = sorted({p.num_replicas for p in view.points if p.is_oversubscribed})
    if not beyond:
        reason = "a core or more per replica"
        return Mark(name, Level.OK, reason)
    listed = ", ".join(map(str, beyond))
    fit = [p for p in view.points if not (p.is_oversubscribed or p.is_baseline)]
    reason = f"oversubscribed at {formats.count(beyond[-1], 'replica')}"
    if len(beyond) > 1:
        reason = f"oversubscribed at {listed} replicas"
    if fit:
        return Mark(name, Level.CAUTION, f"{reason}: not in the verdict")
    return Mark(name, Level.BAD, f"{reason}: nothing else measured")
