"""Every finding in words with its interval and trials, and what limits them."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from reports.view import modes_text
from reports.words import formats, trust
from results.figures import relay, scaling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reports.view import View
    from results.figures.lost_time import InputBound
    from results.figures.scaling import Comparison, Point
    from results.records.models import ScalingMode
    from results.statistics.estimates import Estimate


INCONCLUSIVE = "inconclusive"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding of the study."""

    label: str  # A short name.
    figure: str  # Its number.
    interval: str  # Its interval in brackets, or why there is none.
    sentence: str  # The whole statement with its interval.
    trial_ids: tuple[str, ...]  # The trials behind it.


def lead_curve(view: View, mode: ScalingMode) -> tuple[Point, ...]:
    """Returns the points of the backend that is fastest at its most replicas.

    Oversubscribed cases, and those measured beside load only, are no evidence on
    scaling and are left out.
    """
    best: tuple[tuple[int, float], tuple[Point, ...]] = (0, 0.0), ()
    for backend in view.study.backends:
        curve = tuple(
            point
            for point in view.points_of(mode, backend)
            if point.throughput is not None
            and not point.is_oversubscribed
            and not point.throughput.is_disturbed
            and (
                point.is_baseline
                or (point.efficiency is not None and not point.efficiency.is_disturbed)
            )
        )
        if any(point.efficiency is not None for point in curve):
            last = curve[-1].throughput
            assert last is not None
            rank = curve[-1].num_replicas, last.value
            best = max(best, (rank, curve), key=lambda pair: pair[0])
    return best[1]


def interval_text(estimate: Estimate, write: formats.Write = formats.ratio) -> str:
    """Writes an interval in brackets, or says that one repetition has none."""
    if not estimate.has_interval:
        return "[one repetition: no interval]"
    return formats.interval(estimate.low, estimate.high, write)


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
    speedup, efficiency, baseline = point.speedup, point.efficiency, point.baseline
    assert speedup is not None
    assert efficiency is not None
    assert baseline is not None
    replicas = formats.count(point.num_replicas, "replica")
    where = f"{replicas} ({point.mode.value} scaling)"
    unchanged = baseline.spec.num_replicas
    figure, interval = formats.times(speedup.value), interval_text(speedup)
    if speedup.excludes(unchanged):
        verb = "reaches" if speedup.value > unchanged else "falls to"
        sentence = (
            f"{point.backend} {verb} {figure} {interval} with {where}, a "
            f"parallel efficiency of {formats.percent(efficiency.value)} "
            f"{interval_text(efficiency, formats.percent)}"
            f"{_target_text(efficiency, target)}."
        )
    else:
        reason = _reason(speedup, f"includes {unchanged}")
        sentence = (
            f"Whether {point.backend} gains from {where} is "
            f"inconclusive: the speedup {figure} {interval} {reason}."
        )
        figure = INCONCLUSIVE
    return Finding(
        figure=figure,
        interval=interval,
        label=f"{point.backend}, {replicas}, {point.mode.value} scaling",
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


def cells(point: Point) -> dict[str, str]:
    """Returns what tables in text say of a point, by column."""
    figures = scaling.ratios(point)

    def cell(quantity: str, write: formats.Write) -> str:
        found = figures[quantity].estimate
        return formats.ABSENT if found is None else formats.estimate(found, write)

    speedup = cell("speedup", formats.times)
    if point.is_baseline and figures["speedup"].estimate is None:
        speedup = "baseline"
    return {
        "backend": point.backend,
        "mode": point.mode.value,
        "N": str(point.num_replicas),
        "rate": cell("throughput", formats.significant),
        "speedup": speedup,
        "efficiency": cell("efficiency", formats.percent),
        "of best": cell("efficiency_of_best", formats.percent),
        "ok": f"{len(point.trial_ids)}/{len(point.case.entries)}",
    }


def among(comparison: Comparison) -> str:
    """Says with how many ratios a difference was tested."""
    return f"corrected for {comparison.num_compared} comparisons (Holm)"


def _comparison_finding(comparison: Comparison) -> Finding:
    assert comparison.ratio is not None
    first, second = comparison.first.spec.backend, comparison.second.spec.backend
    replicas = formats.count(comparison.first.spec.num_replicas, "replica")
    figure = formats.times(comparison.ratio.value)
    return Finding(
        figure=figure if comparison.holds else INCONCLUSIVE,
        interval=interval_text(comparison.ratio),
        label=f"{first} over {second}, {replicas}, {modes_text(comparison.modes)}",
        sentence=compare_text(comparison),
        trial_ids=comparison.trial_ids,
    )


def fraction_text(found: InputBound) -> str:
    """Writes the fraction of a step that the pipelines take alone."""
    share = found.fraction
    return formats.with_interval(share.value, share.low, share.high, formats.percent)


def _input_findings(view: View) -> Iterator[Finding]:
    """Yields the cases whose loss is that of their input, in planned order."""
    for item in view.explained:
        bound = None if item.lost is None else item.lost.input_bound
        if bound is None or not bound.explains_loss:
            continue
        backend = item.case.spec.backend
        replicas = formats.count(item.case.spec.num_replicas, "replica")
        text = fraction_text(bound)
        figure, _, interval = text.partition(" ")
        yield Finding(
            figure=figure,
            interval=interval,
            label=f"{backend}, {replicas}, input alone of a step",
            sentence=(
                f"{backend} is input-bound with {replicas}: its input pipelines alone"
                f" take {text} of a step, longer than the step of one replica, so the"
                " loss is that of the input."
            ),
            trial_ids=item.trial_ids,
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
    """Returns each backend and mode at its most replicas that have a core each."""
    found = []
    for mode in view.study.modes:
        for backend in view.study.backends:
            curve = view.points_of(mode, backend)
            fit = [p for p in curve if p.speedup and not p.is_oversubscribed]
            if fit:
                found.append(max(fit, key=lambda point: point.num_replicas))
    return found


def findings_of_leader(view: View) -> tuple[list[Point], list[Comparison]]:
    """Returns how the leader scales, and how it compares with the others there.

    It is the fastest backend of the first mode.
    """
    scaled = _scaled(view)
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
        for item in _compared(view)
        if {item.first.case_id, item.second.case_id} & cases
    ]
    return points, compared


def findings(view: View) -> tuple[Finding, ...]:
    """Returns scaling in planned order of modes, comparisons, and what input takes.

    Nothing of a gate that the machine disturbed too much.
    """
    if trust.why_unfit(view):
        return ()
    target = view.study.plan.measuring.efficiency_target
    return (
        *(_scaling_finding(point, target) for point in _scaled(view)),
        *map(_comparison_finding, _compared(view)),
        *_input_findings(view),
    )


def limits(view: View) -> Iterator[str]:
    """Yields what the study does not show, one sentence each."""
    if unfit := trust.why_unfit(view):
        yield unfit
    counts = sorted({len(c.shown_entries) for c in view.study.cases} - {0})
    if counts:
        yield (
            f"Intervals are 95 % over n = {formats.span(counts)} {view.repetitions} per"
            " case, each in a separate process; each covers 95 % by itself, not all of"
            " them jointly."
        )
    if view.is_relay:
        yield from trust.sentences(view)
    yield from trust.evidence_sentences(view.study)
    if text := trust.why_implausible(view):
        yield text
    yield from trust.matches(view)
    yield from trust.same_work(view)
    yield from _coverage(view)
    for point in view.points:
        if point.throughput and not point.speedup and not point.is_baseline:
            yield (
                f"{point.backend} has no speedup at {point.num_replicas} replicas "
                f"({point.mode.value} scaling): {point.missing_reason}."
            )
    if beyond := view.oversubscribed_sizes:
        yield (
            f"{' and '.join(map(str, beyond))} replicas are oversubscribed (more "
            "replicas than cores): shown hatched, and excluded from this verdict."
        )
    yield from _machine(view)


def _machine(view: View) -> Iterator[str]:
    if any(env.placement.device_sharing == "shared" for env in view.environments):
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
    machines = {env.fingerprint for env in view.environments}
    if len(machines) > 1:
        yield (
            f"Trials ran on {len(machines)} different environments (fingerprints "
            "differ); ratios across them also compare the machines. See Machine."
        )


def _coverage(view: View) -> Iterator[str]:
    planned = view.study.planned
    states = collections.Counter(e.label for e in planned if not e.is_measured)
    num_disturbed = sum(entry.is_disturbed for entry in planned)
    if num_disturbed:
        yield (
            f"{formats.count(num_disturbed, 'trial')} of {len(planned)} had no"
            " undisturbed block; a case leaves them out if it has other trials."
        )
    if states:
        number = sum(states.values())
        listed = ", ".join(f"{of} {state}" for state, of in sorted(states.items()))
        yield (
            f"{formats.count(number, 'planned trial')} of {len(planned)} gave no number"
            f" ({listed}); the figures are based on the"
            f" {len(planned) - number} that did."
        )
    if view.study.problems:
        records = formats.count(len(view.study.problems), "record")
        yield f"{records} could not be read; they are listed under Coverage."
