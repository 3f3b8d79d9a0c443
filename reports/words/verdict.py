"""The verdict in words: the findings and the limits. Also used for the terminal."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from reports.view.view import modes_text
from reports.words import evidence, formats, trust, utilisation
from reports.words.finding import Finding
from results.figures import scaling
from results.figures.load import QUIET_FRACTION
from results.records.models import Order, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reports.view.view import View
    from results.figures.comparisons import Comparison
    from results.figures.scaling import Point
    from results.statistics.estimates import Estimate

NUM_KEY_FINDINGS = 4
INCONCLUSIVE = "inconclusive"

NOUN = {ScalingMode.WEAK: "weak scaling", ScalingMode.STRONG: "strong scaling"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The summary for the reader."""

    headline: str  # One sentence.
    # Scaling in planned order of modes, then comparisons.
    findings: tuple[Finding, ...]
    others: tuple[Finding, ...]  # The findings that are not in the headline.
    key_findings: tuple[Finding, ...]  # The few that are shown as large numbers.
    unknowns: tuple[str, ...]  # What the study does not show, one sentence each.


def interval_text(estimate: Estimate, *, as_percent: bool = False) -> str:
    """Writes an interval in brackets, or says that one repetition has none."""
    if estimate.low is None or estimate.high is None:
        return "[one repetition: no interval]"
    write = formats.percent if as_percent else formats.ratio
    return formats.interval(estimate.low, estimate.high, write)


def _largest(points: tuple[Point, ...]) -> Point | None:
    """Returns the point of most replicas with a speedup, not oversubscribed."""
    fit = [p for p in points if p.speedup is not None and not p.is_oversubscribed]
    return max(fit, key=lambda point: point.num_replicas) if fit else None


def _reason(estimate: Estimate, includes: str) -> str:
    """Returns why an interval excludes nothing: for whom it holds, or what is in it."""
    if not estimate.has_interval:
        return "is that of one repetition"
    if estimate.is_conclusive:
        return includes
    if estimate.is_disturbed:
        return "was measured beside load"
    return "holds for these processes only (one generation)"


def _target_text(efficiency: Estimate, target: float | None) -> str:
    """Says whether an efficiency meets the target of the study, if it has one."""
    if scaling.is_implausible(efficiency):
        return ", which is not plausible"
    if target is None:
        return ""
    percent = formats.percent(target)
    if not efficiency.excludes(target):
        return f"; whether it meets the target of {percent} is inconclusive"
    where = "above" if efficiency.value > target else "below"
    return f", {where} the target of {percent}"


def _scaling_finding(point: Point, target: float | None) -> Finding:
    assert point.speedup is not None
    assert point.efficiency is not None
    replicas = formats.count(point.num_replicas, "replica")
    assert point.baseline is not None
    unchanged = point.baseline.spec.num_replicas
    is_figure_shown = point.speedup.excludes(unchanged)
    reason = _reason(point.speedup, f"includes {unchanged}")
    speedup = f"{formats.times(point.speedup.value)} {interval_text(point.speedup)}"
    if is_figure_shown:
        verb = "reaches" if point.speedup.value > unchanged else "falls to"
        sentence = (
            f"{point.backend} {verb} {speedup} with {replicas} ({NOUN[point.mode]}), a "
            f"parallel efficiency of {formats.percent(point.efficiency.value)} "
            f"{interval_text(point.efficiency, as_percent=True)}"
            f"{_target_text(point.efficiency, target)}."
        )
    else:
        sentence = (
            f"Whether {point.backend} gains from {replicas} ({NOUN[point.mode]}) is "
            f"inconclusive: the speedup {speedup} {reason}."
        )
    return Finding(
        figure=formats.times(point.speedup.value) if is_figure_shown else INCONCLUSIVE,
        interval=interval_text(point.speedup),
        label=f"{point.backend}, {replicas}, {NOUN[point.mode]}",
        sentence=sentence,
        trial_ids=point.ratio_trial_ids,
    )


def compare_text(comparison: Comparison) -> str:
    """Says which backend is faster, or that the comparison is inconclusive."""
    first, second = comparison.first.spec.backend, comparison.second.spec.backend
    ratio = comparison.ratio
    replicas = formats.count(comparison.first.spec.num_replicas, "replica")
    where = f"at {replicas} ({modes_text(comparison.modes)} scaling)"
    if ratio is None:
        return (
            f"{first} and {second} cannot be compared {where}: one of them has no ok"
            " trial."
        )
    figures = f"{formats.times(ratio.value)} {interval_text(ratio)}"
    if not ratio.has_interval:
        return (
            f"{first} ran {figures} as fast as {second} {where}; the spread is "
            "unknown, so the comparison is inconclusive."
        )
    # Oversubscribed ones are shown, and tested with no others.
    is_alone = comparison.is_oversubscribed and ratio.excludes(1.0)
    if not (comparison.holds or is_alone):
        reason = _reason(ratio, "includes 1")
        if ratio.excludes(1.0):
            reason = f"does not hold {among(comparison)}"
        return (
            f"The comparison of {first} and {second} {where} is inconclusive: the "
            f"ratio {figures} {reason}."
        )
    return f"{first} is {figures} as fast as {second} {where}."


def among(comparison: Comparison) -> str:
    """Says with how many ratios a difference was tested."""
    return f"among all {comparison.num_compared} ratios together (Holm)"


def _comparison_finding(comparison: Comparison) -> Finding:
    assert comparison.ratio is not None
    first, second = comparison.first.spec.backend, comparison.second.spec.backend
    replicas = formats.count(comparison.first.spec.num_replicas, "replica")
    is_figure_shown = comparison.holds
    return Finding(
        figure=formats.times(comparison.ratio.value)
        if is_figure_shown
        else INCONCLUSIVE,
        interval=interval_text(comparison.ratio),
        label=f"{first} over {second}, {replicas}, {modes_text(comparison.modes)}",
        sentence=compare_text(comparison),
        trial_ids=comparison.trial_ids,
    )


def _compared(view: View) -> list[Comparison]:
    """Returns the pairs at the most replicas that neither side oversubscribed."""
    chosen: dict[tuple[str, str, ScalingMode], Comparison] = {}
    for comparison in view.comparisons:
        if not comparison.is_oversubscribed and comparison.ratio is not None:
            # Replicas ascend, so the last one wins.
            for mode in comparison.modes:
                pair = comparison.first.spec.backend, comparison.second.spec.backend
                chosen[(*pair, mode)] = comparison
    unique = {id(comparison): comparison for comparison in chosen.values()}
    return sorted(
        unique.values(), key=lambda item: item.first.spec.num_replicas, reverse=True
    )


def _scaled(view: View) -> list[Point]:
    points = (
        _largest(view.points_of(mode, backend))
        for mode in view.study.modes
        for backend in view.study.backends
    )
    return [point for point in points if point is not None]


def _leader(points: list[Point]) -> Point:
    """Returns the fastest of the first mode; the headline is about it."""
    first = [point for point in points if point.mode is points[0].mode]
    return max(
        first, key=lambda point: point.throughput.value if point.throughput else 0
    )


def findings_of_leader(view: View) -> tuple[list[Point], list[Comparison]]:
    """Returns how the leader scales, and how it compares with the others there."""
    scaled = _scaled(view)
    if not scaled:
        return [], []
    leader = _leader(scaled)
    points = [point for point in scaled if point.backend == leader.backend]
    cases = {point.case.case_id for point in points}
    compared = [
        item
        for item in _compared(view)
        if {item.first.case_id, item.second.case_id} & cases
    ]
    return points, compared


def _coverage_unknowns(view: View) -> Iterator[str]:
    planned = view.study.planned
    states = collections.Counter(e.state for e in planned if not e.is_measured)
    num_ok = len(planned) - states.total()
    num_disturbed = sum(entry.is_disturbed for entry in planned)
    if num_disturbed:
        yield (
            f"{formats.count(num_disturbed, 'trial')} of {len(planned)} had no"
            " undisturbed block; a case leaves them out if it has other trials."
        )
    if states:
        listed = ", ".join(
            f"{number} {state}" for state, number in sorted(states.items())
        )
        yield (
            f"{formats.count(sum(states.values()), 'planned trial')} of "
            f"{len(view.study.planned)} gave no number ({listed.replace('_', ' ')}); "
            f"the figures are based on the {num_ok} that did."
        )
    if view.study.problems:
        number = formats.count(len(view.study.problems), "record")
        yield f"{number} could not be read; they are listed under Coverage."


def _unknowns(view: View) -> Iterator[str]:
    cases = [case for case in view.study.cases if case.shown_entries]
    counts = sorted({len(case.shown_entries) for case in cases})
    is_relay = view.study.plan.measuring.order is Order.RELAY
    if counts:
        number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        what = "generations" if is_relay else "repetitions"
        yield (
            f"Intervals are 95 % over n = {number} {what} per case, each in a "
            "separate process; each covers 95 % by itself, not all of them jointly."
        )
    if is_relay:
        yield from trust.sentences(view)
    yield from evidence.sentences(view.study)
    if text := trust.why_implausible(view):
        yield text
    yield from trust.matches(view)
    yield from trust.same_work(view)
    yield from _coverage_unknowns(view)
    for point in view.points:
        if point.throughput and not point.speedup and not point.is_baseline:
            yield (
                f"{point.backend} has no speedup at {point.num_replicas} replicas "
                f"({NOUN[point.mode]}): {point.missing_reason}."
            )
    beyond = sorted({p.num_replicas for p in view.points if p.is_oversubscribed})
    if beyond:
        yield (
            f"{' and '.join(map(str, beyond))} replicas are oversubscribed (more "
            "replicas than cores): shown hatched, and excluded from this verdict."
        )
    environments = [
        entry.trial.env
        for entry in view.study.planned
        if entry.trial is not None and entry.trial.env is not None
    ]
    if any(env.placement.device_sharing == "shared" for env in environments):
        yield (
            "Replicas run on cores of one machine and share its memory bandwidth and "
            "caches, so the figures say nothing about separate machines or devices."
        )
    disturbed = [
        env.foreign_cpu_fraction or 0.0
        for env in environments
        if (env.foreign_cpu_fraction or 0.0) > QUIET_FRACTION and not is_relay
    ]
    if disturbed:
        yield (
            f"The machine was not quiet: in {len(disturbed)} of {len(environments)} "
            "trials other processes used more than "
            f"{formats.percent(QUIET_FRACTION)} of the CPU time (up to "
            f"{formats.percent(max(disturbed))}), which affects the figures."
        )
    machines = {env.fingerprint for env in environments}
    if len(machines) > 1:
        yield (
            f"Trials ran on {len(machines)} different environments (fingerprints "
            "differ); ratios across them also compare the machines. See Machine."
        )


def _headline(findings: list[Finding], leader: str) -> str:
    """Joins sentences, naming their common subject only once."""
    first, *rest = [finding.sentence for finding in findings]
    if not first.startswith(leader):
        return " ".join([first, *rest])
    rest = [
        f"It{text.removeprefix(leader)}" if text.startswith(f"{leader} is ") else text
        for text in rest
    ]
    return " ".join([first, *rest])


def judge(view: View) -> Verdict:
    """Returns the verdict on a study."""
    target = view.study.plan.measuring.efficiency_target
    findings = [_scaling_finding(point, target) for point in _scaled(view)]
    findings += [_comparison_finding(item) for item in _compared(view)]
    of_input = utilisation.findings(view)
    findings += of_input
    points, compared = findings_of_leader(view)
    key_findings = [_scaling_finding(point, target) for point in points]
    key_findings += [_comparison_finding(item) for item in compared]
    in_headline = findings[:1]
    unfit = trust.why_unfit(view)
    if unfit:
        return Verdict(
            headline=unfit,
            findings=(),
            others=(),
            key_findings=(),
            unknowns=tuple(_unknowns(view)),
        )
    if not view.is_anything_measured:
        planned = formats.count(len(view.study.planned), "planned trial")
        headline = f"Nothing was measured: none of {planned} is ok."
    elif not findings:
        headline = "Throughput was measured; there is nothing to compare it with."
    elif not points:
        headline = findings[0].sentence
    else:
        same = [item for item in compared if points[0].mode in item.modes]
        in_headline = key_findings[:1] + [
            _comparison_finding(item) for item in same[:1]
        ]
        in_headline += [
            item
            for item in of_input
            if item.sentence.startswith(f"{points[0].backend} is input-bound")
        ]
        headline = _headline(in_headline, points[0].backend)
    return Verdict(
        headline=headline,
        findings=tuple(findings),
        others=tuple(finding for finding in findings if finding not in in_headline),
        key_findings=tuple(key_findings[:NUM_KEY_FINDINGS]),
        unknowns=tuple(_unknowns(view)),
    )
