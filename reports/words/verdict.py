"""The verdict in words: the findings and the limits. Also used for the terminal."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from reports.view.view import modes_text
from reports.words import formats, trust, utilisation
from results.figures import relay, scaling
from results.records.models import Order, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import rich.console
    import rich.table

    from reports.view.view import View
    from results.figures.scaling import Comparison, Point
    from results.statistics.estimates import Estimate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding of the study."""

    label: str  # A short name.
    figure: str  # The number that is shown large.
    interval: str  # Its interval in brackets, or why there is none.
    sentence: str  # The whole statement with its interval.
    trial_ids: tuple[str, ...]  # The trials behind it.


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


_WIDEST = 10_000


def columns_that_fit(
    columns: Sequence[str],
    dropped_first: Sequence[str],
    make_table: Callable[[Sequence[str]], rich.table.Table],
    console: rich.console.Console,
) -> tuple[str, ...]:
    """Returns the columns that a console has room for, in their order."""
    left = list(columns)
    options = console.options.update(max_width=_WIDEST)
    for name in dropped_first:
        table = make_table(left)
        if console.measure(table, options=options).maximum <= console.width:
            break
        if name in left:
            left.remove(name)
    return tuple(left)


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
    return "holds for these processes only (one run)"


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
            reason = f"does not hold when {among(comparison)}"
        return (
            f"The comparison of {first} and {second} {where} is inconclusive: the "
            f"ratio {figures} {reason}."
        )
    return f"{first} is {figures} as fast as {second} {where}."


def among(comparison: Comparison) -> str:
    """Says with how many ratios a difference was tested."""
    return f"corrected for {comparison.num_compared} comparisons (Holm)"


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


def _input_findings(view: View) -> list[Finding]:
    """Returns the cases whose loss is that of their input, in planned order."""
    found = []
    for item in view.explained:
        bound = None if item.lost is None else item.lost.input_bound
        if bound is None or not bound.explains_loss:
            continue
        spec = item.case.spec
        replicas = formats.count(spec.num_replicas, "replica")
        text = utilisation.fraction_text(bound)
        figure, _, interval = text.partition(" ")
        found.append(
            Finding(
                figure=figure,
                interval=interval,
                label=f"{spec.backend}, {replicas}, input alone of a step",
                sentence=(
                    f"{spec.backend} is input-bound with {replicas}: its input "
                    f"pipelines alone take {text} of a step, longer than the step of "
                    "one replica, so the loss is that of the input."
                ),
                trial_ids=item.trial_ids,
            )
        )
    return found


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
        what = "runs" if is_relay else "repetitions"
        yield (
            f"Intervals are 95 % over n = {number} {what} per case, each in a "
            "separate process; each covers 95 % by itself, not all of them jointly."
        )
    if is_relay:
        yield from trust.sentences(view)
    yield from trust.evidence_sentences(view.study)
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
    load = relay.load_of_study(view.study)
    if load.num_busy:
        yield (
            f"The machine was not quiet: {trust.load_text(load)}; more than "
            f"{formats.percent(relay.QUIET_FRACTION)} affects the figures."
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
    of_input = _input_findings(view)
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
        headline = "Throughput was measured, of one case: there is no ratio."
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
