"""The trust strip: what a reader must know before believing a figure.

Each mark is ok, caution or bad, with its reason. A mark that is not ok changes the
words of the verdict (``reports/words/brief.py``).
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, NamedTuple

from reports.words import formats, trust
from results.figures import relay, scaling
from results.records.models import Evidence
from results.study import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reports.view import View

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


class Mark(NamedTuple):
    """One thing to know."""

    name: str  # What was looked at.
    level: Level  # How it is.
    reason: str  # Why, in a few words.


def of_view(view: View) -> tuple[Mark, ...]:
    """Returns all marks, in reading order."""
    looks: dict[str, Callable[[View], tuple[Level, str] | None]] = {
        "Evidence": _evidence,
        "Design": _design,
        "Sample": _sample,
        "Plausibility": _plausibility,
        "Resolution": _resolution,
        "Quiet machine": _quiet,
        "Drift": _drift,
        "Failures": _failures,
        "Cores": _cores,
    }
    return tuple(
        Mark(name, *found)
        for name, look in looks.items()
        if (found := look(view)) is not None
    )


def worst(found: Sequence[Mark]) -> Level:
    """Returns the worst level."""
    levels = list(Level)
    return max((mark.level for mark in found), key=levels.index)


def _level(*, is_caution: bool, is_bad: bool = False) -> Level:
    if is_bad:
        return Level.BAD
    return Level.CAUTION if is_caution else Level.OK


def _evidence(view: View) -> tuple[Level, str] | None:
    """How good the evidence is; of a program, by what it prints and the clock."""
    found = trust.grade(view.study)
    if found is None:
        return None
    is_caution = found.evidence not in (None, Evidence.WINDOW)
    return _level(is_caution=is_caution), found.text


def _design(view: View) -> tuple[Level, str]:
    broken = matching.agreements_of(view.study).broken
    if broken:
        name = broken[0].second.spec.backend
        return Level.BAD, f"{name} does not do the same work"
    if not view.is_relay:
        return Level.CAUTION, "trials one after another: drift is in the ratios"
    twin = relay.twin_of(view.study)
    if twin is None:
        return Level.CAUTION, "in turns, without an A/A control"
    ratio = formats.estimate(twin.ratio, formats.times)
    # Of twenty twins, one is outside its 95 % interval by chance.
    level = _level(is_caution=twin.ratio.excludes(1.0), is_bad=twin.differs)
    if level is Level.OK:
        return level, f"cases take turns; one, measured twice: {ratio}"
    return level, f"one case, measured twice, differs: {ratio}"


def _sample(view: View) -> tuple[Level, str]:
    counts = [len(c.shown_entries) for c in view.study.cases if c.shown_entries]
    what = view.repetition
    fewest, most = min(counts, default=0), max(counts, default=0)
    if most <= 1:
        reason = f"one {what}: no interval" if fewest else "nothing measured"
        return Level.BAD, reason
    reason = formats.count(fewest, what)
    if fewest < most:
        reason = f"{fewest} to {most} {what}s"
    if fewest < ENOUGH_REPETITIONS:
        return Level.CAUTION, f"{reason}: wide intervals"
    return Level.OK, reason


def _plausibility(view: View) -> tuple[Level, str] | None:
    """A failed check where an efficiency is above what is possible."""
    number = sum(scaling.is_implausible(point.efficiency) for point in view.points)
    if not number:
        return None
    counted = formats.count(number, "efficiency", "efficiencies")
    return Level.BAD, f"{counted} above {formats.percent(scaling.MOST_EFFICIENT)}"


def _resolution(view: View) -> tuple[Level, str] | None:
    """How finely the figures of the first screen are known, where any has one.

    The twin counts with its distance from 1 as well: equal programs differ by that.
    """
    shown = [p.efficiency for p in view.most_replicas if p.efficiency]
    halves = [
        (found.high - found.low) / 2 / found.value
        for found in shown
        if found.low is not None and found.high is not None
    ]
    if not halves:
        return None
    widest = round(max(halves), 2)  # as it is shown
    reason = f"efficiencies within {formats.percent(widest)} to either side"
    twin = relay.twin_of(view.study)
    if twin is not None:
        apart = round(abs(math.log(twin.ratio.value)), 2)
        if apart > max(FINE, widest):
            widest = apart
            reason = f"equal programs are {formats.percent(apart)} apart"
    reason += ": coarse" * (widest > FINE)
    # By which part an efficiency of total time is below that of turns.
    hidden = max(
        scaling.hidden_by_slow_turns(point.case, point.baseline) or 0.0
        if point.efficiency is not None and point.baseline is not None
        else 0.0
        for point in view.most_replicas
    )
    if hidden > SLOW_TURNS:
        reason += (
            f"; of total time {formats.percent(hidden)} lower: some blocks are much"
            " slower"
        )
    is_caution = widest > FINE or hidden > SLOW_TURNS
    return _level(is_caution=is_caution, is_bad=widest > COARSE), reason


def _quiet(view: View) -> tuple[Level, str]:
    load = relay.load_of_study(view.study)
    if not view.is_relay:
        is_bad = load.num_busy > MANY * (load.num_all - load.num_unknown)
        is_caution = bool(load.num_busy or load.num_unknown)
        return _level(is_caution=is_caution, is_bad=is_bad), trust.load_text(load)
    counts = relay.count_turns(view.study)
    # In numbers: less than half a per cent would be 0 %.
    reason = f"{counts.num_void} of {counts.num_turns} blocks discarded"
    if not counts.num_void:
        reason = "no block was discarded"
    if any(case.is_disturbed for case in view.study.cases):
        return Level.BAD, f"{reason}: no evidence"
    if counts.is_unfit and view.study.plan.measuring.gate is not None:
        return Level.BAD, reason
    reason = counts.busy or reason
    if load.num_unknown:
        return Level.CAUTION, f"{reason}; {trust.load_text(load)}"
    return _level(is_caution=bool(counts.busy)), reason


def _drift(view: View) -> tuple[Level, str]:
    fingerprints = {env.fingerprint for env in view.environments}
    if len(fingerprints) > 1:
        return Level.BAD, f"{len(fingerprints)} different environments"
    found = trust.of_entries(view, view.study.planned)
    if found is None:
        return Level.CAUTION, "speed was not recorded"
    moved = found.of_medians
    reason = f"speed of the machine moved by {formats.percent(moved)}"
    if moved <= SMALL_DRIFT:
        return Level.OK, reason
    if view.is_relay:
        return Level.CAUTION, f"{reason}: rates move with it, ratios do not"
    return _level(is_caution=True, is_bad=moved > LARGE_DRIFT), reason


def _failures(view: View) -> tuple[Level, str]:
    planned = view.study.planned
    num_missing = sum(not entry.is_measured for entry in planned)
    trials = formats.count(len(planned), "trial")
    if num_missing:
        level = _level(is_caution=True, is_bad=num_missing > MANY * len(planned))
        return level, f"{num_missing} of {trials} gave no number"
    num_disturbed = sum(entry.is_disturbed for entry in planned)
    if num_disturbed:
        return Level.OK, f"{num_disturbed} of {len(planned)} trials beside load only"
    return Level.OK, f"all {trials} ok"


def _cores(view: View) -> tuple[Level, str]:
    beyond = view.oversubscribed_sizes
    if not beyond:
        return Level.OK, "a core or more per replica"
    reason = f"oversubscribed at {formats.count(beyond[-1], 'replica')}"
    if len(beyond) > 1:
        reason = f"oversubscribed at {', '.join(map(str, beyond))} replicas"
    if all(p.is_oversubscribed or p.is_baseline for p in view.points):
        return Level.BAD, f"{reason}: nothing else measured"
    return Level.CAUTION, f"{reason}: not in the verdict"
