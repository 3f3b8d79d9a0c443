"""What a reader must know before believing a figure, each caveat worded once.

``limits`` yields what a study does not show besides.
"""

from __future__ import annotations

import collections
import enum
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from reports.words import evidence, formats
from reports.words.formats import grouped
from results.figures import conditions, scaling
from results.records.models import Evidence
from results.study.equivalence import NUM_STEPS, Agreements, Outcome, agreements_of

if TYPE_CHECKING:
    from reports.view import View
    from results.study.cases import Entry

ENOUGH_REPETITIONS = 4
MANY = 0.2
"""More failed or disturbed trials than this fraction are bad."""
SMALL_DRIFT, LARGE_DRIFT = 0.10, 0.25
FINE, COARSE = 0.06, 0.20
"""Half an interval, relative to its figure, up to which a study resolves what its
reader asks (the median of a default study is 4 %), and above which it resolves little.
"""
SLOW_BLOCKS = 0.03
"""By which efficiencies of total time may be below those of typical blocks."""


class Level(enum.Enum):
    """How far a caveat limits trust, the worst last."""

    OK = "ok"
    CAUTION = "caution"
    BAD = "bad"


class Caveat(NamedTuple):
    """Something that limits trust in a study, or was looked at and does not."""

    name: str  # What was looked at.
    level: Level  # How it is.
    reason: str  # Why, in a few words.


def caveats_of(view: View) -> tuple[Caveat, ...]:
    """Returns what limits trust in a study: what was looked at, its level, and why."""
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
        Caveat(name, *judged)
        for name, look in looks.items()
        if (judged := look(view)) is not None
    )


def worst(caveats: Sequence[Caveat]) -> Level:
    levels = list(Level)
    return max((caveat.level for caveat in caveats), key=levels.index)


def _level(*, is_caution: bool, is_bad: bool = False) -> Level:
    if is_bad:
        return Level.BAD
    return Level.CAUTION if is_caution else Level.OK


def _evidence(view: View) -> tuple[Level, str] | None:
    """How good the evidence is; of a program, by what it prints and the clock."""
    grade = evidence.grade(view.study)
    if grade is None:
        return None
    is_caution = grade.evidence not in (None, Evidence.WINDOW)
    return _level(is_caution=is_caution), grade.text


def _design(view: View) -> tuple[Level, str]:
    agreements = agreements_of(view.study)
    for pair in agreements.broken[:1]:
        return Level.BAD, (
            f"{pair.second.label} does not do the same work as"
            f" {pair.first.spec.backend}: their losses differ by up to"
            f" {formats.percent(pair.difference)} within the first"
            f" {_steps(agreements)}, so their ratio is left out"
        )
    if not view.is_interleaved:
        return Level.CAUTION, "trials one after another: drift is in the ratios"
    aa_control = conditions.aa_control_of(view.study)
    if aa_control is None:
        return Level.CAUTION, "in turns, without an A/A control"
    ratio, verdict = aa_control.ratio, "consistent with 1"
    if ratio.excludes(1.0):
        verdict = "not consistent with 1: small differences may be chance"
    elif ratio.is_disturbed:
        verdict = "measured beside load, which decides nothing"
    elif not ratio.is_conclusive or not ratio.has_interval:
        verdict = "one run decides nothing"
    # Of twenty A/A controls, one is outside its 95 % interval by chance.
    return _level(is_caution=ratio.excludes(1.0), is_bad=aa_control.differs), (
        f"cases take turns; {aa_control.case.label}, measured twice:"
        f" {formats.estimate(ratio, formats.times)} (n = {ratio.n}; {verdict})"
    )


def _steps(agreements: Agreements) -> str:
    return "step" if agreements.num_steps == 1 else f"{agreements.num_steps} steps"


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
    """How finely efficiencies are known, and how far equal programs are apart."""
    shown = [p.efficiency for p in view.most_replicas if p.efficiency]
    halves = [
        (estimate.high - estimate.low) / 2 / estimate.value
        for estimate in shown
        if estimate.low is not None and estimate.high is not None
    ]
    if not halves:
        return None
    widest = round(max(halves), 2)  # as it is shown
    reason = f"efficiencies within {formats.percent(widest)} to either side"
    aa_control = conditions.aa_control_of(view.study)
    if aa_control is not None:
        apart = round(abs(math.log(aa_control.ratio.value)), 2)
        if apart > max(FINE, widest):
            widest = apart
            reason = f"equal programs are {formats.percent(apart)} apart"
    reason += ": coarse" * (widest > FINE)
    # By which part an efficiency of total time is below that of blocks.
    hidden = max(
        scaling.hidden_by_slow_blocks(point.case, point.baseline) or 0.0
        if point.efficiency is not None and point.baseline is not None
        else 0.0
        for point in view.most_replicas
    )
    if hidden > SLOW_BLOCKS:
        reason += (
            f"; of total time {formats.percent(hidden)} lower: some blocks are much"
            " slower"
        )
    is_caution = widest > FINE or hidden > SLOW_BLOCKS
    return _level(is_caution=is_caution, is_bad=widest > COARSE), reason


def is_unfit(view: View) -> bool:
    """Whether the machine disturbed a gate too much for any verdict."""
    is_gate = view.study.plan.measuring.gate is not None
    return is_gate and conditions.count_blocks(view.study).is_unfit


def blocks_text(counts: conditions.BlockCounts) -> str:
    if not counts.num_discarded:
        return "no block was discarded"
    # In numbers: less than half a per cent would be 0 %.
    text = f"{counts.num_discarded} of {counts.num_blocks} blocks discarded"
    reason, number = counts.reasons[0]
    text += f", {number} since {reason}"
    if counts.num_lost:
        text += f"; {formats.count(counts.num_lost, 'block')} had no valid attempt"
    return text


def _quiet(view: View) -> tuple[Level, str]:
    load = conditions.load_of_study(view.study)
    if not view.is_interleaved:
        is_bad = load.num_busy > MANY * (load.num_all - load.num_unknown)
        is_caution = bool(load.num_busy or load.num_unknown)
        reason = load_text(load)
        if load.num_busy:
            reason += (
                f"; more than {formats.percent(conditions.QUIET_FRACTION)} affects"
            )
            reason += " the figures"
        return _level(is_caution=is_caution, is_bad=is_bad), reason
    counts = conditions.count_blocks(view.study)
    reason = blocks_text(counts)
    if any(case.is_disturbed for case in view.study.cases):
        return Level.BAD, f"no evidence: {reason}"
    if is_unfit(view):
        return Level.BAD, reason
    if counts.busy:
        reason = f"intervals are wider: {reason}"
    if load.num_unknown:
        return Level.CAUTION, f"{reason}; {load_text(load)}"
    return _level(is_caution=bool(counts.busy)), reason


def load_text(load: conditions.Load) -> str:
    unknown = "load was not recorded"
    if load.num_all:
        unknown += f" in {load.num_unknown} of {load.num_all} {load.unit}s"
    if load.most is None:
        return unknown
    said = f"others used at most {formats.percent(load.most)} of CPU time"
    if load.num_busy:
        said = (
            f"others used up to {formats.percent(load.most)} of CPU time in"
            f" {load.num_busy} of {load.num_all - load.num_unknown} {load.unit}s"
        )
    return f"{said}; {unknown}" if load.num_unknown else said


def busy(view: View) -> str:
    """Returns what load made of the figures of a sweep, in one sentence; or ""."""
    cases = [case for case in view.study.cases if case.measured_entries]
    disturbed = [case for case in cases if case.is_disturbed]
    if disturbed:
        # Once for weak and strong scaling: the reader looks for the rows of a table.
        names = dict.fromkeys(
            f"{case.spec.backend} x{case.spec.num_replicas}" for case in disturbed
        )
        of = "every case" if len(disturbed) == len(cases) else ", ".join(names)
        return (
            f"Busy machine: all blocks of {of} were disturbed, so these figures were"
            " measured beside this load and are no evidence."
        )
    text = conditions.count_blocks(view.study).busy
    return f"{text[0].upper()}{text[1:]}." if text else ""


def why_implausible(view: View) -> str:
    if not any(scaling.is_implausible(point.efficiency) for point in view.points):
        return ""
    return (
        f"An efficiency above {formats.percent(scaling.MOST_EFFICIENT)} is not "
        "plausible. Usual reasons: the number is another than was declared, such as "
        "the time of an epoch as that of a step; the baseline is slowed, as by fewer "
        "threads; or more replicas do less work in all."
    )


class Drift(NamedTuple):
    """Relative changes of the time of a fixed computation: largest over smallest."""

    # Of medians of a trial or run; a single reading can be disturbed.
    of_medians: float
    of_readings: float


def drift_of(view: View, entries: Iterable[Entry]) -> Drift | None:
    """Returns the drift over some trials of a study; None where it was not recorded."""
    seconds_of: dict[str | int, list[float]] = collections.defaultdict(list)
    for entry in entries:
        if (env := entry.env) is not None:
            is_of_repetition = view.is_interleaved and entry.spec.budget is None
            key = entry.spec.repetition_index if is_of_repetition else entry.trial_id
            canaries = (env.canary_before_sec, env.canary_after_sec)
            seconds_of[key] += [seconds for seconds in canaries if seconds]
    medians = [
        statistics.median(readings) for readings in seconds_of.values() if readings
    ]
    if not medians:
        return None
    readings = [seconds for group in seconds_of.values() for seconds in group]
    return Drift(max(medians) / min(medians) - 1, max(readings) / min(readings) - 1)


def _drift(view: View) -> tuple[Level, str]:
    fingerprints = {env.fingerprint for env in view.study.environments}
    if len(fingerprints) > 1:
        return Level.BAD, f"{len(fingerprints)} different environments"
    drift = drift_of(view, view.study.planned)
    if drift is None:
        return Level.CAUTION, "speed was not recorded"
    moved = drift.of_medians
    reason = f"speed of the machine moved by {formats.percent(moved)}"
    if moved <= SMALL_DRIFT:
        return Level.OK, reason
    if view.is_interleaved:
        return Level.CAUTION, f"{reason}: rates move with it, ratios do not"
    return _level(is_caution=True, is_bad=moved > LARGE_DRIFT), reason


def _failures(view: View) -> tuple[Level, str]:
    planned = view.study.planned
    states = collections.Counter(each.label for each in planned if not each.is_measured)
    trials = formats.count(len(planned), "trial")
    if states:
        number = sum(states.values())
        listed = ", ".join(f"{each} {state}" for state, each in sorted(states.items()))
        level = _level(is_caution=True, is_bad=number > MANY * len(planned))
        return level, f"{number} of {trials} gave no number ({listed})"
    num_disturbed = sum(entry.is_disturbed for entry in planned)
    if num_disturbed:
        only = "beside load only, left out where a case has others"
        return Level.OK, f"{num_disturbed} of {trials} {only}"
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


def limits(view: View) -> Iterator[str]:
    """Yields what the study does not show and no caveat says, one sentence each."""
    counts = sorted({len(c.shown_entries) for c in view.study.cases} - {0})
    if counts:
        yield (
            f"Intervals are 95 % over n = {formats.span(counts)} {view.repetitions} per"
            " case, each in a separate process; each covers 95 % by itself, not all of"
            " them jointly."
        )
    primary = view.study.plan.measuring.primary if view.is_interleaved else None
    if primary is not None:
        yield (
            f"The study was planned for one contrast: {primary.text}. All other "
            "ratios are secondary."
        )
    if view.is_interleaved:
        yield from first_steps(view)
    yield from evidence.sentences(view.study)
    yield from matches(view)
    yield from same_work(view)
    if any(e.placement.device_sharing == "shared" for e in view.study.environments):
        yield (
            "Replicas run on cores of one machine and share its memory bandwidth and "
            "caches, so the figures say nothing about separate machines or devices."
        )
    if view.study.problems:
        records = formats.count(len(view.study.problems), "record")
        yield f"{records} could not be read; they are listed under Trials."


def first_steps(view: View) -> Iterator[str]:
    """Yields what blocks cost, since the first step of each is slower."""
    known = [conditions.first_step_of(case) for case in view.measured_cases]
    cases = [each for each in known if each is not None]
    # Cases that were chosen before anything was measured: no largest of several.
    primary = view.study.plan.measuring.primary
    planned = () if primary is None else (primary.first_case_id, primary.second_case_id)
    several = [
        each for each in cases if each.ratio is not None and each.ratio.has_interval
    ]
    chosen = [each for each in several if each.case.case_id in planned] or several[:1]
    for each in chosen:
        assert each.ratio is not None
        steps = formats.span((each.fewest, each.most))
        yield (
            f"{each.case.label}: the first step of a block is "
            f"{formats.longer(each.ratio)} than its others (n = {each.ratio.n}), "
            f"{formats.signed_percent(each.part)} of a block of {steps} steps."
        )
    single = [each for each in cases if each.fewest == 1]
    if single and (several or len(single) < len(cases)):
        some = "some " * any(each.most > 1 for each in single)
        yield (
            f"{len(single)} of {len(cases)} cases have {some}one-step blocks: such a "
            "step is a first one, which is slower, so efficiencies that compare them "
            "with longer blocks are a little off."
        )
    unlike = [each for each in cases if each.fewest < each.most]
    if unlike:
        fewest, most = (
            min(each.fewest for each in unlike),
            max(each.most for each in unlike),
        )
        yield (
            f"In {len(unlike)} of {len(cases)} cases the number of steps per block "
            f"differs between runs ({fewest} to {most}): this study was "
            "measured before it was one for each case."
        )


def matches(view: View) -> Iterator[str]:
    """Yields whether N replicas compute what one replica does on the same examples."""
    by_outcome = grouped((match.outcome, match) for match in view.study.matches)
    matched = by_outcome.get(Outcome.MATCHES, [])
    if matched:
        losses = max(match.loss_difference or 0.0 for match in matched)
        known = [
            m.change_difference for m in matched if m.change_difference is not None
        ]
        changes = (
            f"what the steps change by at most {max(known):.1g}, relatively."
            if known
            else "relatively; what the steps change is not known."
        )
        verb = "matches" if len(matched) == 1 else "match"
        yield (
            f"{', '.join(match.label for match in matched)} {verb} one replica on the "
            f"first {NUM_STEPS} steps: losses differ by at most "
            f"{losses:.1g}, {changes}"
        )
    remarks = grouped((match.remark, match.label) for match in matched if match.remark)
    for remark, labels in remarks.items():
        yield f"For the equivalence check only, of {' and '.join(labels)}: {remark}."
    for match in by_outcome.get(Outcome.DIFFERS, ()):
        yield f"{match.label} failed the equivalence check: it {match.reason}."
    unknown = by_outcome.get(Outcome.NOT_CHECKED, ())
    for reason, labels in grouped(
        (each.reason, each.label) for each in unknown
    ).items():
        yield f"Not checked against one replica: {', '.join(labels)}: {reason}."


def same_work(view: View) -> Iterator[str]:
    """Yields whether backends compute the same on their first steps."""
    agreements = agreements_of(view.study)
    matched = view.study.plan.equivalence
    # What shows that backends do the same work, where losses do not.
    else_shown = "nor does anything else: there was no equivalence check"
    if matched is not None and matched.trials:
        else_shown = "the equivalence check, on equal numbers, shows it"
    if not agreements.repeats_itself:
        yield (
            "Equal programs do not repeat themselves here: the losses of their first "
            "steps differ, so losses cannot show whether backends do the same work."
        )
    if agreements.is_drawn:
        yield (
            "Steps draw random numbers, and each backend its own, so losses of the "
            "measured runs do not show whether backends do the same work; "
            f"{else_shown}."
        )
    is_amplified = view.study.plan.amplifies_rounding
    if agreements.pairs and not agreements.broken:
        largest = max(pair.difference for pair in agreements.pairs)
        differ = f"differ by at most {largest:.1g}, relatively"
        number = sum(pair.num_pairs for pair in agreements.pairs)
        yield (
            f"Backends {'begin alike' if is_amplified else 'compute the same'}: with "
            "the same replicas, batch and seed their losses of the first "
            f"{_steps(agreements)} {differ if largest else 'are equal'} "
            f"(n = {number} pairs of trials)."
        )
    if agreements.pairs and is_amplified:
        yield (
            "The model amplifies rounding from its first update on, so later losses "
            f"do not show whether backends do the same work; {else_shown}."
        )
    if agreements.by_check:
        yield (
            f"First losses of {', '.join(agreements.by_check)} are compared in each of"
            " their trials, from weights and batches that were exported; trials where "
            "they differ have failed."
        )
