"""The first screen in words: an answer to the title, a table, what is next.

Commands are the one that made the study with some options replaced: they can be run.
"""

from __future__ import annotations

import collections
import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from reports.words import caveats, evidence, formats, judgement, names
from results.figures import scaling
from results.records.models import Control, ScalingMode, TrialStatus
from results.records.texts import without_options
from results.statistics import estimates, group_sequential

if TYPE_CHECKING:
    from reports.view import View
    from results.figures.lost_time import LostTime
    from results.figures.scaling import Comparison, Point
    from results.records.models import Plan
    from results.statistics.estimates import Estimate


MOST_ROWS = 8
"""Of more cases, the first table has those of most replicas, and another has all."""
_LONGEST_REASON = 20  # words


class Row(NamedTuple):
    """One case, as tables of the first screen, a terminal and Markdown write it."""

    point: Point
    backend: str
    mode: str  # Weak or strong; of what efficiencies are relative to, ``baseline``.
    size: str  # Replicas, and the batch of each.
    rate: str  # Throughput with its interval.
    efficiency: str  # Parallel efficiency with its interval, or why there is none.
    ratio: str  # Rate of the leader over this one, in the same mode and size.

    @property
    def cells(self) -> tuple[str, ...]:
        return self[1:]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """The verdict of the first screen."""

    level: caveats.Level  # The worst of the caveats.
    # What was found; the first answers the title.
    sentences: tuple[str, ...]
    verdict: str = ""  # Of a gate: its first word.
    trust: str = ""  # ``Reliable``, or what limits it; empty if nothing was measured.
    rows: tuple[Row, ...] = ()  # The table; empty if nothing was measured.
    following: str = ""  # What would settle the rest, with what is typed in backticks.
    # What brackets are, and of how many repetitions; empty if nothing was measured.
    note: str = ""

    @property
    def next_parts(self) -> list[tuple[str, bool]]:
        """What would settle the rest, and whether each part is typed as a command."""
        parts = enumerate(self.following.split("`"))
        return [(part, bool(number % 2)) for number, part in parts if part]

    @property
    def next_step(self) -> str:
        return self.following.replace("`", "")

    @property
    def text(self) -> str:
        parts = [f"{self.verdict}:" if self.verdict else "", *self.sentences]
        parts.append(f"{self.trust}." if self.trust else "")
        parts.append(f"Next: {self.next_step}." if self.next_step else "")
        return " ".join(part for part in parts if part)


def verdict(view: View) -> Brief:
    """Returns what the first screen says of a study, in words.

    Its ``text`` is all of it in one line: the answer, cautions and what is next.
    """
    gate = judgement.gate_view(view)
    if gate is not None:
        return Brief(
            verdict=gate.verdict.upper(),
            level=gate.level,
            sentences=(gate.sentence,),
            following=gate.following,
        )
    if not view.is_anything_measured:
        return Brief(
            level=caveats.Level.BAD,
            sentences=(_nothing_measured(view),),
            following=after_failures(view),
        )
    all_caveats = caveats.caveats_of(view)
    level = caveats.worst(all_caveats)
    points, compared = leader_points(view)
    doubts = [
        caveats.busy(view),
        evidence.caveat(view.study),
        caveats.why_implausible(view),
    ]
    note, following, trusted = _when(view), "", ""
    rows = table(view, view.points)
    if points:
        sentences = [
            _answer(view, points[0], compared),
            _loss_sentence(view, points),
            *doubts,
        ]
        note = f"{_note(view, points)} {note}"
        following = _choose(view, all_caveats, points, compared)
        trusted = _trust_words(all_caveats, level)
    else:
        alone = "Throughput was measured, of one case: there is no ratio."
        sentences = [alone, *doubts]
        following = with_a_baseline(view)
    return Brief(
        level=level,
        sentences=tuple(text for text in sentences if text),
        trust=trusted,
        rows=rows if len(rows) <= MOST_ROWS else table(view, view.most_replicas),
        following=following,
        note=note,
    )


def columns(view: View) -> tuple[str, ...]:
    fastest = leader(view)
    return (
        *(view.noun, "scaling", f"replicas {formats.TIMES} batch", view.rate_unit),
        *("of ideal", f"{fastest} against it" if fastest else ""),
    )


def table(view: View, points: Sequence[Point]) -> tuple[Row, ...]:
    """Returns a row per case that was measured; one that serves both modes has one."""
    shown: dict[tuple[str, object], Point] = {}
    for point in points:
        if point.throughput is not None or point.is_crossed_out:
            mode = point.efficiency and point.mode
            shown.setdefault((point.case.case_id, mode), point)
    return tuple(_row(view, point) for point in shown.values())


def _row(view: View, point: Point) -> Row:
    efficiency = "" if point.is_baseline else point.missing_reason
    if point.efficiency is not None:
        efficiency = formats.estimate(point.efficiency, formats.percent)
        efficiency += _target(view, point.efficiency)
    shown = point.efficiency or point.throughput
    parts = (efficiency, *point.caveats(shown))
    batch = point.case.spec.per_replica_batch_size
    return Row(
        point=point,
        backend=point.backend,
        mode="baseline" if point.is_baseline else point.mode.value,
        size=f"{point.num_replicas} {formats.TIMES} {batch}",
        rate="not equivalent"
        if point.throughput is None
        else formats.estimate(point.throughput, formats.significant),
        efficiency=", ".join(part for part in parts if part),
        ratio=_ratio(view, point),
    )


def _target(view: View, efficiency: Estimate) -> str:
    target = view.study.plan.measuring.efficiency_target
    if target is None or scaling.is_implausible(efficiency):
        return ""
    if not efficiency.excludes(target):
        return f", {formats.percent(target)} inconclusive"
    where = "above" if efficiency.value > target else "below"
    return f", {where} {formats.percent(target)}"


def _ratio(view: View, point: Point) -> str:
    """Writes the rate of the leader over a point in the same mode and size."""
    name = leader(view)
    for item in view.comparisons if point.backend != name else ():
        pair = {case.case_id: case.spec.backend for case in (item.first, item.second)}
        pair.pop(point.case.case_id, None)
        if point.mode in item.modes and [*pair.values()] == [name]:
            _, ratio = item.over(name)
            if ratio is None:
                return ""
            shown = formats.estimate(ratio, formats.times)
            if item.holds or item.is_oversubscribed:
                return shown
            return f"{shown}, {ratio.caveat or 'no difference shown'}"
    return ""


def _note(view: View, points: Sequence[Point]) -> str:
    known = [p.efficiency for p in points if p.efficiency is not None]
    numbers = sorted({estimate.n for estimate in known})
    noun = view.repetition if numbers == [1] else view.repetitions
    number = f"{formats.span(numbers)} {noun}"
    if not any(estimate.has_interval for estimate in known):
        return f"{number}: no intervals."
    if not any(estimate.is_conclusive or estimate.is_disturbed for estimate in known):
        return f"Brackets are intervals of these processes only, {number}."
    more = " of fresh processes" * view.is_interleaved
    return f"Brackets are 95{formats.HARD_SPACE}% intervals over {number}{more}."


def _when(view: View) -> str:
    """Says for when rates hold: a rate has the weather of its hour, a ratio has not."""
    statuses = [
        entry.status
        for entry in view.study.planned
        if entry.is_measured and entry.status is not None
    ]
    first = min(status.started_at for status in statuses)
    last = max(status.ended_at for status in statuses)
    begin, end = map(formats.day_and_minute, (first, last))
    if begin.partition(" ")[0] == end.partition(" ")[0]:
        end = end.partition(" ")[2]
    return f"Rates are this machine's from {begin} to {end} UTC."


def _trust_words(all_caveats: Sequence[caveats.Caveat], level: caveats.Level) -> str:
    if level is caveats.Level.OK:
        return "Reliable"
    words = "Not reliable" if level is caveats.Level.BAD else "Caution"
    names = ", ".join(
        caveat.name.lower() for caveat in all_caveats if caveat.level is level
    )
    return f"{words}: {names}"


def _nothing_measured(view: View) -> str:
    planned = view.study.planned
    number = formats.count(len(planned), "planned trial")
    failed = [
        entry.reason.rstrip(".")
        for entry in planned
        if entry.state in {status.value for status in TrialStatus}
    ]
    if not failed:
        return f"Nothing was measured: none of {number} is ok."
    # The first of equally frequent ones, so that the page is the same in every run.
    ((reason, times_seen),) = collections.Counter(failed).most_common(1)
    words = reason.split()
    if len(words) > _LONGEST_REASON:
        reason = " ".join(words[:_LONGEST_REASON]) + "…"
    return f"Nothing was measured: {reason} ({times_seen} of {number})."


def _answer(view: View, point: Point, compared: Sequence[Comparison]) -> str:
    """Says how much faster more replicas are, how near to ideal, and than what."""
    assert point.efficiency is not None
    assert point.speedup is not None
    subject = names.workload(point.case.spec.workload)
    verb = "trains" if view.study.program is None else "runs"
    times = f"{_short_ratio(point.speedup.value)} times"
    share = f"{formats.percent(point.efficiency.value)} of ideal"
    shown = formats.telling(point.efficiency, formats.percent)
    if point.efficiency.low is not None and point.efficiency.high is not None:
        low, high = shown(point.efficiency.low), shown(point.efficiency.high)
        share = f"{shown(point.efficiency.value)} of ideal"
        share += f", between {low.rstrip(f'%{formats.THIN_SPACE}')} and {high}"
    reserved = point.efficiency.caveat
    share += f"; {reserved}" * bool(reserved)
    assert point.baseline is not None
    base = point.baseline.spec
    where, one = names.devices(point.case.spec), names.devices(base)
    than = f" as on {one}" * (base.num_replicas * base.cores_per_replica > 1)
    if not point.speedup.excludes(base.num_replicas) and not reserved:
        start = f"Whether {subject} {verb} faster on {where} is inconclusive: {times}"
        return f"{start} as fast ({share}){_against(view, point, compared)}."
    start = f"{subject} {verb} {times} as fast on {where}{than} ({share})"
    return f"{start}{_against(view, point, compared)}."


def _short_ratio(value: float) -> str:
    """Writes a ratio with two digits, or with three where two would say equal."""
    text = formats.significant(value, 2)
    return formats.significant(value, 3) if float(text.split()[0]) == 1 else text


def _against(view: View, point: Point, compared: Sequence[Comparison]) -> str:
    """Says how a point compares with the other backends, as the end of a sentence."""
    backend = point.backend
    others = [name for name in view.study.backends if name != backend]
    if not others:
        return f", {backend} alone" * (view.study.program is None)
    same = [item for item in compared if point.mode in item.modes]
    if not same:
        what = names.short(others[0])
        if len(others) > 1:
            what = f"{len(others)} other backends"
        return f", not compared with {what}"
    if len(same) > 1:
        wins = [
            (item.first.spec.backend == backend) == (item.ratio.value > 1)
            for item in same
            if item.holds and item.ratio is not None
        ]
        if len(wins) == len(same) and all(wins):
            end = f"faster than each of {len(same)} other backends"
        else:
            end = (
                f"faster than {wins.count(True)} of {len(same)} other backends, slower"
                f" than {wins.count(False)}"
            )
        return f", {end} (corrected for {same[0].num_compared} comparisons, Holm)"
    (item,) = same
    other, ratio = item.over(backend)
    if ratio is None or not item.holds:
        return f"; no difference from {names.short(other)} is shown"
    return f", {_short_ratio(ratio.value)} times as fast as {names.short(other)}"


def _scaled(view: View) -> list[Point]:
    """Returns each backend and mode at its most replicas that have a core each."""
    points: list[Point] = []
    for mode in view.study.modes:
        for backend in view.study.backends:
            curve = view.points_of(mode, backend)
            fit = [p for p in curve if p.speedup and not p.is_oversubscribed]
            points += fit[-1:]
    return points


def leader_points(view: View) -> tuple[list[Point], list[Comparison]]:
    """Returns how the fastest backend of the first mode scales, and its ratios."""
    scaled = [] if caveats.is_unfit(view) else _scaled(view)
    if not scaled:
        return [], []
    leader = max(
        (point for point in scaled if point.mode is scaled[0].mode),
        key=lambda point: point.throughput.value if point.throughput else 0,
    )
    points = [point for point in scaled if point.backend == leader.backend]
    cases = {point.case.case_id for point in points}
    compared = [
        item
        for item in view.comparisons
        if item.ratio is not None
        and not item.is_oversubscribed
        and {item.first.case_id, item.second.case_id} & cases
    ]
    return points, compared


def leader(view: View) -> str:
    """Returns the backend that others are compared with; empty without others."""
    points, _ = leader_points(view)
    return points[0].backend if points and len(view.study.backends) > 1 else ""


# What a study leaves open: what would settle it, and what that takes.

HARNESS: Final = "python -m harness"
_OF_THE_STUDY: Final = ("--study", "--runs-dir")
"""A study is only continued by the code that began it; its folder is private."""
_OF_ANOTHER_STUDY: Final = ("--repeats", "--minutes", *_OF_THE_STUDY)
"""Options with a value, which a new study has not; --minutes is of earlier versions."""
_SWEEP: Final = "sweep"
_NARROW: Final = 1.02
"""Ends of an interval that are no further apart need no narrower one."""


def command_of_study(plan: Plan) -> str:
    """Returns the command that measures a study again, in a folder of its own."""
    options = {} if _SWEEP not in plan.command else _replicas(plan)
    return _command(plan, options, _OF_THE_STUDY)


def sizes_of(*numbers: int) -> str:
    return ",".join(str(number) for number in sorted(set(numbers)))


def other_study(plan: Plan, options: Mapping[str, str]) -> str:
    """Returns the command of the same with other options; "" if ``sweep`` made none."""
    if _SWEEP not in plan.command:
        return ""
    return _command(plan, {**_replicas(plan), **options}, _OF_ANOTHER_STUDY)


def with_repetitions(plan: Plan, number: int) -> str:
    """Returns the command of a new study with so many repetitions."""
    options = {"--repeats": str(number)}
    minutes = plan.measuring.minutes
    if minutes is not None and plan.measuring.target is None:
        # A repetition stays as long as it was.
        options["--time-budget"] = f"{minutes * number / max(plan.repeats, 1):g}min"
    return other_study(plan, options)


def resume(plan: Plan, *options: str) -> str:
    return f"{HARNESS} {shlex.join(('sweep', '--study', plan.study, *options))}"


def export(plan: Plan, form: str) -> str:
    return f"{HARNESS} {shlex.join(('report', plan.study, '--format', form))}"


def _replicas(plan: Plan) -> dict[str, str]:
    """Returns the numbers of replicas, whose default depends on the machine."""
    if any(word.partition("=")[0] == "--replicas" for word in plan.command):
        return {}
    sizes = {
        trial.spec.num_replicas
        for trial in plan.trials
        if trial.spec.budget is None and trial.spec.control is Control.NONE
    }
    return {"--replicas": sizes_of(*sizes)} if sizes else {}


def _command(plan: Plan, options: Mapping[str, str], without: Iterable[str]) -> str:
    """Replaces options of a command."""
    kept = without_options(plan.command, *without, *options)
    return shlex.join([*kept, *(word for pair in options.items() for word in pair)])


# A cause and an advice need an efficiency whose interval is below 1.

REMEDIES: Final = {
    "contention": "try cores with memory bandwidth of their own",
    "exposed_communication": "try larger batches per replica",
    "input": "try a faster input pipeline",
    "imbalance": "try equal work per replica",
    "update": "try a sharded update",
}
"""By parts that a control has shown; what blocks record is too coarse for an advice."""


def _is_lost(efficiency: Estimate | None) -> bool:
    return efficiency is not None and efficiency.value < 1 and efficiency.excludes(1.0)


def _worst_loss(view: View, points: Sequence[Point]) -> tuple[Point, LostTime | None]:
    """Returns the point of the lowest efficiency, and the parts of its step."""
    point = min(points, key=lambda p: p.efficiency.value if p.efficiency else 1.0)
    for item in view.losses:
        is_same = item.case.case_id == point.case.case_id and item.lost is not None
        if is_same and (item.has_controls or item.mode is point.mode):
            return point, item.lost
    return point, None


def _loss_sentence(view: View, points: Sequence[Point]) -> str:
    """Says what most of the time is lost to at the lowest efficiency."""
    point, lost = _worst_loss(view, points)
    efficiency = point.efficiency
    if not _is_lost(efficiency):
        is_below = efficiency is not None and efficiency.value < 1
        return f"Whether {point.backend} loses time is inconclusive." * is_below
    if lost is None:  # nobody can say, of a program of the user's
        return "Causes were not recorded." * (view.study.program is None)
    mode = f" in {point.mode.value} scaling" if len(points) > 1 else ""
    share = lost.lost.share
    if share is None or share.low is None:
        return "One run tells no cause of lost time."
    if not lost.main_loss:
        return (
            f"{point.backend} loses {formats.estimate(share, formats.percent)} of a"
            f" step{mode}; no single cause is shown to be most of it."
        )
    part = lost.part(lost.main_loss)
    assert part.share is not None
    return (
        f"Most of what {point.backend} loses{mode}: {names.PARTS[part.name][0]},"
        f" {formats.estimate(part.share, formats.percent)} of a step."
    )


def _choose(
    view: View,
    all_caveats: Sequence[caveats.Caveat],
    points: Sequence[Point],
    compared: Sequence[Comparison],
) -> str:
    """Says what would settle what is open; what is typed is in backticks."""
    plan = view.study.plan
    known = [p.efficiency for p in points if p.efficiency is not None]
    is_known = any(each.is_conclusive and each.has_interval for each in known)
    level_of = {each.name: each.level for each in all_caveats}
    quiet, drift = level_of.get("Quiet machine"), level_of.get("Drift")
    is_loud = caveats.Level.BAD in (quiet, drift)
    is_coarse = caveats.Level.CAUTION is quiet is level_of.get("Resolution")
    repeated = with_repetitions(plan, caveats.ENOUGH_REPETITIONS)
    # The figures that tell neither backends nor an efficiency apart.
    target = plan.measuring.efficiency_target
    open_figures = [item.ratio for item in compared if item.ratio and not item.holds]
    if target is not None:
        open_figures += [each for each in known if not each.excludes(target)]
    point, lost = _worst_loss(view, points)
    is_lost = _is_lost(point.efficiency)
    candidates = [
        "repeat on a quiet machine" * is_loud,
        "" if is_known else _typed(repeated, "gives intervals"),
        _narrower(view, open_figures),
        _controls(view, points),
        REMEDIES.get(lost.main_loss, "") if is_lost and lost is not None else "",
        "repeat on a quiet machine" * is_coarse,
        _wider(view, points),
    ]
    return next(text for text in candidates if text)


def _typed(command: str, does: str) -> str:
    return f"`{command}` {does}" if command else ""


def _narrower(view: View, open_figures: Sequence[Estimate]) -> str:
    """Returns the command that narrows what is open; nothing where nothing is.

    How many repetitions would settle a figure is not said: that supposes that the truth
    is what was measured, and of equal backends it was kept in 0.09 to 0.67.
    """
    numbers = [
        figure.n
        for figure in open_figures
        if figure.low is not None
        and figure.high is not None
        and figure.low > 0
        and figure.high / figure.low > _NARROW
    ]
    n = min(numbers, default=0)
    if n < estimates.FEWEST_FOR_INTERVAL:
        return ""
    before, after = (
        group_sequential.median_half_width(1.0, number) for number in (n, 2 * n)
    )
    does = f"narrows the intervals by {formats.percent(1 - after / before)}"
    return _typed(with_repetitions(view.study.plan, 2 * n), does)


def _controls(view: View, points: Sequence[Point]) -> str:
    is_explained = any(item.has_controls for item in view.losses)
    is_asked = view.study.program is None and not is_explained
    if not is_asked or not any(_is_lost(p.efficiency) for p in points):
        return ""
    options = {"--order": "interleaved", "--controls": "all"}
    command = other_study(view.study.plan, options)
    return _typed(command, "measures what the time is lost to")


def _wider(view: View, points: Sequence[Point]) -> str:
    """Returns what the study could measure beyond what it has."""
    if ScalingMode.STRONG not in view.study.modes:
        return "measure strong scaling"
    largest = max(points, key=lambda point: point.num_replicas)
    (entry, *_) = largest.case.shown_entries
    if entry.env is None:
        return "measure more replicas"
    free = entry.env.placement.num_available_cores
    if largest.num_replicas * largest.case.spec.cores_per_replica < free:
        return f"measure more replicas: there are {free} cores"
    return "measure on a machine with more cores"


def with_a_baseline(view: View) -> str:
    """Returns the command that measures something to compare with."""
    if not all(entry.is_ok for entry in view.study.planned):
        return after_failures(view, "what 'status' says of the others")
    plan = view.study.plan
    measured = {point.num_replicas for point in view.points}
    most = max(measured | {2 * plan.baseline_num_replicas})
    sizes = sizes_of(plan.baseline_num_replicas, most)
    command = other_study(plan, {"--replicas": sizes})
    return _typed(command, "has a baseline and more")


def after_failures(view: View, what: str = "this") -> str:
    """Returns what to do after failures; a repaired program is another study."""
    states = {entry.state for entry in view.study.planned}
    if not states & {status.value for status in TrialStatus}:
        return f"`{resume(view.study.plan)}` runs what is missing"
    again = resume(view.study.plan, "--retry", "failed")
    if view.study.program is not None:
        again = command_of_study(view.study.plan)
    return f"fix {what}, then `{again}`"
