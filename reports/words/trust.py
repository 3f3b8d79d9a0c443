"""How far a relay can be trusted: its twin, its void turns, its primary contrast."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from typing import TYPE_CHECKING

from reports.words import formats
from results.figures import lost_time, relay, scaling
from results.records.models import Order
from results.study import agreement, matching
from results.study.matching import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reports.view.view import View
    from results.study.cases import Entry


def busy(view: View) -> str:
    """Returns what load made of the figures of a sweep, in one sentence; or ""."""
    cases = [case for case in view.study.cases if case.measured_entries]
    disturbed = [
        f"{case.spec.backend} x{case.spec.num_replicas}"
        for case in cases
        if case.is_disturbed
    ]
    if disturbed:
        names = "every case" if len(disturbed) == len(cases) else ", ".join(disturbed)
        return (
            f"Busy machine: all blocks of {names} were disturbed, so figures of it are"
            " what was measured beside this load, and no evidence."
        )
    counts = relay.count_turns(view.study)
    return f"{counts.busy[0].upper()}{counts.busy[1:]}." if counts.busy else ""


def why_unfit(view: View) -> str:
    """Returns the headline of a gate that the machine disturbed too much, or ""."""
    counts = relay.count_turns(view.study)
    if not counts.is_unfit or view.study.plan.measuring.gate is None:
        return ""
    return (
        f"No verdict: {formats.percent(counts.void_fraction)} of the turns are void "
        f"({counts.num_void} of {counts.num_turns}; {_main_reason(counts)}); at most "
        f"{formats.percent(relay.MOST_VOID)} may be. Repeat the gate on a quiet "
        "machine."
    )


def why_implausible(view: View) -> str:
    """Says what usually makes an efficiency too high; empty if none is."""
    if not any(scaling.is_implausible(point.efficiency) for point in view.points):
        return ""
    return (
        f"An efficiency above {formats.percent(scaling.MOST_EFFICIENT)} is not "
        "plausible. Usual reasons: the number is another than was declared, such as "
        "the time of an epoch as that of a step; the baseline is slowed, as by fewer "
        "threads; or more replicas do less work in all."
    )


def sentences(view: View) -> Iterator[str]:
    """Yields what limits the figures of a relay, one sentence each."""
    primary = view.study.plan.measuring.primary
    if primary is not None:
        yield (
            f"The study was planned for one contrast: {primary.text}. All other "
            "ratios are secondary."
        )
    twin = relay.twin_of(view.study)
    if twin is None:
        yield "The twin, one case measured twice, has no result."
    else:
        low, high = twin.ratio.low, twin.ratio.high
        figures = formats.times(twin.ratio.value)
        if low is not None and high is not None:
            figures += f" {formats.interval(low, high, formats.ratio)}"
        verdict = "must include 1, and does"
        if twin.ratio.excludes(1.0):
            verdict = (
                "must include 1, and does not: small differences between backends here "
                "may be chance"
            )
        elif twin.ratio.is_disturbed:
            verdict = "measured beside load, which decides nothing"
        elif not twin.ratio.is_conclusive or not twin.ratio.has_interval:
            verdict = "one generation decides nothing"
        yield (
            f"{twin.case.label} was measured twice to check the design: the ratio "
            f"of the two is {figures} (n = {twin.ratio.n}; {verdict})."
        )
    yield from _first_steps(view)
    counts = relay.count_turns(view.study)
    if counts.num_void:
        yield void_turns(counts)


def void_turns(counts: relay.TurnCounts) -> str:
    """Says how many turns are void, why, and how many had no valid attempt."""
    verb = "is" if counts.num_void == 1 else "are"
    left = f"{formats.count(counts.num_lost, 'turn')} had no valid attempt"
    return (
        f"{counts.num_void} of {counts.num_turns} turns {verb} void: "
        f"{_main_reason(counts)}. Such a turn is repeated up to twice; "
        f"{left if counts.num_lost else 'each then had a valid one'}."
    )


def _first_steps(view: View) -> Iterator[str]:
    """Yields what turns cost, since the first step of each is slower."""
    known = [lost_time.of_case(case) for case in view.measured_cases]
    found = [of for of in known if of is not None]
    # Cases that were chosen before anything was measured: no largest of several.
    primary = view.study.plan.measuring.primary
    planned = () if primary is None else (primary.first_case_id, primary.second_case_id)
    several = [of for of in found if of.ratio is not None and of.ratio.has_interval]
    chosen = [of for of in several if of.case.case_id in planned] or several[:1]
    for of in chosen:
        assert of.ratio is not None
        steps = f"{of.fewest}" if of.fewest == of.most else f"{of.fewest} to {of.most}"
        yield (
            f"{of.case.label}: the first step of a turn is "
            f"{formats.longer(of.ratio)} than its others (n = {of.ratio.n}), "
            f"{formats.signed_percent(of.part)} of a turn of {steps} steps."
        )
    single = [of for of in found if of.fewest == 1]
    if single and (several or len(single) < len(found)):
        some = "Some turns" if any(of.most > 1 for of in single) else "Turns"
        yield (
            f"{some} of {len(single)} of {len(found)} cases are one step, the first: "
            "efficiencies that compare them with longer turns include what it takes "
            "more."
        )
    unlike = [of for of in found if of.fewest < of.most]
    if unlike:
        fewest, most = min(of.fewest for of in unlike), max(of.most for of in unlike)
        yield (
            f"In {len(unlike)} of {len(found)} cases the number of steps per turn "
            f"differs between generations ({fewest} to {most}): this study was "
            "measured before it was one for each case."
        )


def matches(view: View) -> Iterator[str]:
    """Yields whether N replicas compute what one replica does on the same examples."""
    found = view.study.matches
    matched = [match for match in found if match.outcome is Outcome.MATCHES]
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
            f"first {matching.NUM_STEPS} steps: losses differ by at most {losses:.1g}, "
            f"{changes}"
        )
        remarks: dict[str, list[str]] = {}
        for match in matched:
            if match.remark:
                remarks.setdefault(match.remark, []).append(match.label)
        for remark, labels in remarks.items():
            yield f"To match {' and '.join(labels)}, this was changed: {remark}."
    for match in found:
        if match.outcome is Outcome.DIFFERS:
            yield f"{match.label} is crossed out: it {match.reason}."
    reasons: dict[str, list[str]] = {}
    for match in found:
        if match.outcome is Outcome.NOT_CHECKED:
            reasons.setdefault(match.reason, []).append(match.label)
    for reason, labels in reasons.items():
        yield f"Not checked against one replica: {', '.join(labels)}: {reason}."


def same_work(view: View) -> Iterator[str]:
    """Yields whether backends compute the same on their first steps."""
    found = agreement.of_study(view.study)
    if not found.repeats_itself:
        yield (
            "Equal programs do not repeat themselves here: the losses of their first "
            "steps differ, so losses cannot show whether backends do the same work."
        )
    if found.is_drawn:
        yield (
            "Steps draw random numbers, and each backend its own, so losses of the "
            "measured runs do not show whether backends do the same work; "
            f"{_what_else_shows(view)}."
        )
    is_amplified = view.study.plan.amplifies_rounding
    if found.pairs and not found.broken:
        largest = max(pair.difference for pair in found.pairs)
        differ = f"differ by at most {largest:.1g}, relatively"
        number = sum(pair.num_pairs for pair in found.pairs)
        yield (
            f"Backends {'begin alike' if is_amplified else 'do the same work'}: with "
            "the same replicas, batch and seed their losses of the first "
            f"{_steps(found)} {differ if largest else 'are equal'} "
            f"(n = {number} pairs of trials)."
        )
    if found.pairs and is_amplified:
        yield (
            "The model amplifies rounding from its first update on, so later losses "
            "do not show whether backends do the same work; "
            f"{_what_else_shows(view)}."
        )
    if found.by_check:
        yield (
            f"First losses of {', '.join(found.by_check)} are compared in each of"
            " their trials, from weights and batches that were exported; trials where "
            "they differ have failed."
        )
    for pair in found.broken:
        yield (
            f"{pair.second.label} does not do the same work as "
            f"{pair.first.spec.backend}: their losses differ by up to "
            f"{formats.percent(pair.difference)} within the first "
            f"{_steps(found)}, so their ratio is left out."
        )


def _steps(found: agreement.Agreements) -> str:
    return "step" if found.num_steps == 1 else f"{found.num_steps} steps"


def _what_else_shows(view: View) -> str:
    """What shows that backends do the same work, where losses do not."""
    matched = view.study.plan.matching
    if matched is None or not matched.trials:
        return "nor does anything else, since replicas were not matched with one"
    return "matching with one replica, on equal numbers, shows it"


def _main_reason(counts: relay.TurnCounts) -> str:
    reason, number = counts.reasons[0]
    return f"in {number} of them {reason}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Relative changes of the time of a fixed computation."""

    # Largest over smallest median, minus 1; of what ran at about the same time. It is
    # what counts: a single reading can be disturbed.
    of_medians: float
    of_readings: float  # The same of single readings.
    unit: str  # What ran at about the same time: ``trial`` or ``generation``.


def of_entries(view: View, entries: Iterable[Entry]) -> Drift | None:
    """Returns the drift over some trials of a study; None where it was not recorded.

    In a relay the trials of a generation lie side by side.
    """
    is_relay = view.study.plan.measuring.order is Order.RELAY
    found: dict[str | int, list[float]] = collections.defaultdict(list)
    for entry in entries:
        if entry.trial is None or entry.trial.env is None:
            continue
        env = entry.trial.env
        is_of_generation = is_relay and entry.spec.budget is None
        key = entry.spec.repetition_index if is_of_generation else entry.trial_id
        canaries = (env.canary_before_sec, env.canary_after_sec)
        found[key] += [seconds for seconds in canaries if seconds]
    medians = [statistics.median(readings) for readings in found.values() if readings]
    if not medians:
        return None
    readings = [seconds for group in found.values() for seconds in group]
    return Drift(
        of_medians=max(medians) / min(medians) - 1,
        of_readings=max(readings) / min(readings) - 1,
        unit="generation" if is_relay else "trial",
    )
