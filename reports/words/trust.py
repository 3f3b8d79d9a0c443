"""How far figures can be trusted, in sentences: load, design, drift, equal work."""

from __future__ import annotations

import collections
import enum
import statistics
from typing import TYPE_CHECKING, Final, NamedTuple

from reports.words import formats
from reports.words.formats import grouped
from results.figures import relay, scaling
from results.records.models import Evidence
from results.study import matching
from results.study.matching import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reports.view import View
    from results.study.cases import Case, Entry, Study


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
    text = relay.count_turns(view.study).busy
    return f"{text[0].upper()}{text[1:]}." if text else ""


def load_text(found: relay.Load) -> str:
    """Says what others used of the machine, or that it is unknown."""
    unknown = "load was not recorded"
    if found.num_all:
        unknown += f" in {found.num_unknown} of {found.num_all} {found.unit}s"
    if found.most is None:
        return unknown
    said = f"others used at most {formats.percent(found.most)} of CPU time"
    if found.num_busy:
        said = (
            f"others used up to {formats.percent(found.most)} of CPU time in"
            f" {found.num_busy} of {found.num_all - found.num_unknown} {found.unit}s"
        )
    return f"{said}; {unknown}" if found.num_unknown else said


def why_unfit(view: View) -> str:
    """Returns the headline of a gate that the machine disturbed too much, or ""."""
    counts = relay.count_turns(view.study)
    if not counts.is_unfit or view.study.plan.measuring.gate is None:
        return ""
    return (
        f"No verdict: {formats.percent(counts.void_fraction)} of the blocks are "
        f"discarded ({counts.num_void} of {counts.num_turns}; {_main_reason(counts)}); "
        f"at most {formats.percent(relay.MOST_VOID)} may be. Repeat the gate on a "
        "quiet machine."
    )


def _main_reason(counts: relay.TurnCounts) -> str:
    reason, number = counts.reasons[0]
    return f"in {number} of them {reason}"


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
        yield "The A/A control, one case measured twice, has no result."
    else:
        ratio = twin.ratio
        figures = formats.times(ratio.value)
        if ratio.has_interval:
            figures += f" {formats.interval(ratio.low, ratio.high, formats.ratio)}"
        verdict = "consistent with 1"
        if ratio.excludes(1.0):
            verdict = (
                "not consistent with 1: small differences between backends here "
                "may be chance"
            )
        elif ratio.is_disturbed:
            verdict = "measured beside load, which decides nothing"
        elif not ratio.is_conclusive or not ratio.has_interval:
            verdict = "one run decides nothing"
        yield (
            f"{twin.case.label} was measured twice to check the design: the ratio "
            f"of the two is {figures} (n = {ratio.n}; {verdict})."
        )
    yield from _first_steps(view)
    counts = relay.count_turns(view.study)
    if counts.num_void:
        yield void_turns(counts)


def void_turns(counts: relay.TurnCounts) -> str:
    """Says how many turns are void, why, and how many had no valid attempt."""
    verb = "is" if counts.num_void == 1 else "are"
    left = f"{formats.count(counts.num_lost, 'block')} had no valid attempt"
    return (
        f"{counts.num_void} of {counts.num_turns} blocks {verb} discarded: "
        f"{_main_reason(counts)}. Such a block is repeated up to twice; "
        f"{left if counts.num_lost else 'each then had a valid one'}."
    )


def _first_steps(view: View) -> Iterator[str]:
    """Yields what turns cost, since the first step of each is slower."""
    known = [relay.first_step_of(case) for case in view.measured_cases]
    found = [of for of in known if of is not None]
    # Cases that were chosen before anything was measured: no largest of several.
    primary = view.study.plan.measuring.primary
    planned = () if primary is None else (primary.first_case_id, primary.second_case_id)
    several = [of for of in found if of.ratio is not None and of.ratio.has_interval]
    chosen = [of for of in several if of.case.case_id in planned] or several[:1]
    for of in chosen:
        assert of.ratio is not None
        steps = formats.span((of.fewest, of.most))
        yield (
            f"{of.case.label}: the first step of a block is "
            f"{formats.longer(of.ratio)} than its others (n = {of.ratio.n}), "
            f"{formats.signed_percent(of.part)} of a block of {steps} steps."
        )
    single = [of for of in found if of.fewest == 1]
    if single and (several or len(single) < len(found)):
        some = "some " * any(of.most > 1 for of in single)
        yield (
            f"{len(single)} of {len(found)} cases have {some}one-step blocks: such a "
            "step is a first one, which is slower, so efficiencies that compare them "
            "with longer blocks are a little off."
        )
    unlike = [of for of in found if of.fewest < of.most]
    if unlike:
        fewest, most = min(of.fewest for of in unlike), max(of.most for of in unlike)
        yield (
            f"In {len(unlike)} of {len(found)} cases the number of steps per block "
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
            f"first {matching.NUM_STEPS} steps: losses differ by at most {losses:.1g}, "
            f"{changes}"
        )
    remarks = grouped((match.remark, match.label) for match in matched if match.remark)
    for remark, labels in remarks.items():
        yield f"For the equivalence check only, of {' and '.join(labels)}: {remark}."
    for match in by_outcome.get(Outcome.DIFFERS, ()):
        yield f"{match.label} failed the equivalence check: it {match.reason}."
    unknown = by_outcome.get(Outcome.NOT_CHECKED, ())
    for reason, labels in grouped((of.reason, of.label) for of in unknown).items():
        yield f"Not checked against one replica: {', '.join(labels)}: {reason}."


def same_work(view: View) -> Iterator[str]:
    """Yields whether backends compute the same on their first steps."""
    found = matching.agreements_of(view.study)
    steps = "step" if found.num_steps == 1 else f"{found.num_steps} steps"
    matched = view.study.plan.matching
    # What shows that backends do the same work, where losses do not.
    else_shown = "nor does anything else: there was no equivalence check"
    if matched is not None and matched.trials:
        else_shown = "the equivalence check, on equal numbers, shows it"
    if not found.repeats_itself:
        yield (
            "Equal programs do not repeat themselves here: the losses of their first "
            "steps differ, so losses cannot show whether backends do the same work."
        )
    if found.is_drawn:
        yield (
            "Steps draw random numbers, and each backend its own, so losses of the "
            "measured runs do not show whether backends do the same work; "
            f"{else_shown}."
        )
    is_amplified = view.study.plan.amplifies_rounding
    if found.pairs and not found.broken:
        largest = max(pair.difference for pair in found.pairs)
        differ = f"differ by at most {largest:.1g}, relatively"
        number = sum(pair.num_pairs for pair in found.pairs)
        yield (
            f"Backends {'begin alike' if is_amplified else 'compute the same'}: with "
            "the same replicas, batch and seed their losses of the first "
            f"{steps} {differ if largest else 'are equal'} "
            f"(n = {number} pairs of trials)."
        )
    if found.pairs and is_amplified:
        yield (
            "The model amplifies rounding from its first update on, so later losses "
            f"do not show whether backends do the same work; {else_shown}."
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
            f"{steps}, so their ratio is left out."
        )


class Drift(NamedTuple):
    """Relative changes of the time of a fixed computation: largest over smallest."""

    # Of medians of what ran at about the same time, a trial or a run. It is what
    # counts: a single reading can be disturbed.
    of_medians: float
    of_readings: float


def of_entries(view: View, entries: Iterable[Entry]) -> Drift | None:
    """Returns the drift over some trials of a study; None where it was not recorded.

    In a relay the trials of a generation lie side by side.
    """
    found: dict[str | int, list[float]] = collections.defaultdict(list)
    for entry in entries:
        env = None if entry.trial is None else entry.trial.env
        if env is not None:
            is_of_generation = view.is_relay and entry.spec.budget is None
            key = entry.spec.repetition_index if is_of_generation else entry.trial_id
            canaries = (env.canary_before_sec, env.canary_after_sec)
            found[key] += [seconds for seconds in canaries if seconds]
    medians = [statistics.median(readings) for readings in found.values() if readings]
    if not medians:
        return None
    readings = [seconds for group in found.values() for seconds in group]
    return Drift(max(medians) / min(medians) - 1, max(readings) / min(readings) - 1)


# Grades, the best first: A, the program's processes take turns and the harness has the
# clock; B, numbers that it printed, each timed, in a window after warm-up; C, several
# numbers without times; D, the last number. A study has the worst grade of its trials.
# Numbers that the clock of the harness does not confirm are C at most, those that it
# contradicts D.

_GRADES: Final = {
    Evidence.WINDOW: ("B", "numbers that it printed or wrote, timed, after warm-up"),
    Evidence.ROWS: ("C", "numbers without times, after warm-up"),
    Evidence.LAST: ("D", "the last number that it printed"),
}
_BUSY: Final = 0.7
"""Of a core per replica, from which on a program computes rather than waits."""
_LIKE: Final = 0.15
"""Two numbers that differ by less than this part are taken for the same."""
_OFF: Final = 1.5
"""Times by which the rate of a line may be off the time between two lines."""


class Witness(enum.Enum):
    """What the clock of the harness says of a program's rates, the worst last."""

    CONFIRMS = "confirms"
    DOUBTS = "does not confirm"
    DENIES = "contradicts"


_LEAST: Final = {Witness.DOUBTS: Evidence.ROWS, Witness.DENIES: Evidence.LAST}


class Grade(NamedTuple):
    """How good the evidence of a study is."""

    evidence: Evidence | None  # None where no rate is read that a program prints.
    letter: str  # From A, the best, to D.
    reason: str

    @property
    def text(self) -> str:
        """The grade in words."""
        return f"grade {self.letter} of A to D: {self.reason}"


def grade(study: Study) -> Grade | None:
    """Returns the grade of a study; None where nothing was measured."""
    program = study.program
    if program is None or program.is_client:
        is_measured = any(entry.is_ok for entry in study.planned)
        return Grade(None, "A", "the harness has the clock") if is_measured else None
    found = {
        entry.result.readings.evidence
        for entry in study.planned
        if entry.is_ok and entry.result.readings is not None
    }
    if not found:
        return None
    ranked = list(Evidence)
    worst = max(found, key=ranked.index)
    letter, words = _GRADES[worst]
    if program is not None and program.is_wall:
        return Grade(worst, letter, "whole commands, timed by the harness")
    heard, _ = _worst_witness(study)
    if heard is not Witness.CONFIRMS:
        worst = max(worst, _LEAST[heard], key=ranked.index)
        letter = _GRADES[worst][0]
        words = f"numbers that the harness's clock {heard.value}"
    return Grade(worst, letter, words)


def _measured(study: Study) -> list[Case]:
    return [case for case in study.cases if case.ok_entries]


def _worst_witness(study: Study) -> tuple[Witness, Case]:
    """Returns what is worst of all measured cases, and the first of which it is."""
    heard = [(_witness(study, case), case) for case in _measured(study)]
    return max(heard, key=lambda pair: list(Witness).index(pair[0]))


def evidence_caveat(study: Study) -> str:
    """Says which case the clock of the harness contradicts, or does not confirm."""
    program = study.program
    if program is None or program.is_client or not _measured(study):
        return ""
    heard, case = _worst_witness(study)
    if heard is Witness.CONFIRMS:
        return ""
    entry = case.ok_entries[0]
    (rank, *_), number = entry.result.ranks, entry.result.num_measured_steps
    step = formats.seconds(entry.result.window_sec / number)
    label = formats.count(case.spec.num_replicas, "replica")
    spacing = _spacing(case)
    if spacing is None:
        return (
            f"The harness's clock {heard.value} the rates: by its numbers the steps"
            f" with {label} took longer than the program ran. Are they in another unit?"
        )
    apart = formats.seconds((rank.window_end_ns - rank.window_start_ns) / 1e9 / number)
    start = (
        f"The harness's clock {heard.value} the rates: with {label} a line came every"
        f" {apart}, and by its number a global batch takes {step}."
    )
    if spacing < 1:
        return (
            f"{start} Are the numbers in another unit, a running average, or printed by"
            " several processes? Then no figure is right; see --metric."
        )
    if program.steps_per_line is not None:
        return f"{start} A line is said to be of {program.steps_per_line} steps."
    return (
        f"{start} If a line is of {formats.significant(spacing)} steps, write"
        " [every N] behind the name of --metric; else the numbers are in another unit"
        " (ms read as s, a rate per hour), or leave time out."
    )


def _witness(study: Study, case: Case) -> Witness:
    """Compares what a case claims with when its lines came."""
    program = study.program
    assert program is not None
    for entry in case.ok_entries:
        status = None if entry.trial is None else entry.trial.status
        rank = entry.result.ranks[0]
        claimed = sum(rank.warmup_step_time_sec) + entry.result.window_sec
        if status is not None and claimed > _OFF * status.duration_sec:
            return Witness.DENIES
    spacing = _spacing(case)
    if spacing is None:
        return Witness.CONFIRMS  # its grade says that no line has a time
    per_line = {float(program.steps_per_line or 1)}
    for entry in case.ok_entries if program.steps_per_line is None else ():
        assert entry.result.readings is not None
        for advance in entry.result.readings.advances:
            steps = advance / entry.result.num_measured_steps
            per_line |= {steps, steps / case.spec.global_batch_size}
    if any(1 / _OFF <= spacing / one <= _OFF for one in per_line if one):
        return Witness.CONFIRMS
    is_denied = spacing < 1 or program.steps_per_line is not None
    return Witness.DENIES if is_denied else Witness.DOUBTS


def evidence_sentences(study: Study) -> Iterator[str]:
    """Yields what limits the figures of a program, one sentence each."""
    program = study.program
    if program is None or program.is_client:
        return
    rates = f"The rates are what the program says ({program.metric})"
    if program.is_wall:
        rates = "A rate is the batch over the time of the whole command, start included"
    yield (
        f"{rates}, and whole runs of it alternate. Results were not checked against one"
        " replica."
    )
    if text := evidence_caveat(study):
        yield text
    remarks: collections.Counter[str] = collections.Counter()
    for entry in study.planned:
        if entry.is_ok and entry.result.readings is not None:
            remarks.update(entry.result.readings.remarks)
    for remark, number in remarks.items():
        yield f"In {formats.count(number, 'trial')} of the program, {remark}."
    measured = _measured(study)
    fewest = min(measured, key=lambda case: case.spec.num_replicas, default=None)
    for case in measured:
        assert fewest is not None
        if case.spec.num_replicas > fewest.spec.num_replicas:
            yield from _suspicions(case, fewest)


def _suspicions(case: Case, fewest: Case) -> Iterator[str]:
    """Yields what suggests that a program does not do what its command asks for."""
    before_count = fewest.spec.num_replicas
    factor = case.spec.num_replicas / before_count
    replicas = formats.count(case.spec.num_replicas, "replica")
    before = formats.count(before_count, "replica")
    busy, busy_before = (_median(of, "busy_cores") for of in (case, fewest))
    is_pinned = case.is_oversubscribed or case.spec.device != "cpu"
    is_busy = min(busy, busy_before) > _BUSY * before_count
    if is_busy and not is_pinned and busy < (1 + _LIKE) * busy_before:
        yield (
            f"With {replicas} the program kept {busy:.1f} cores busy, with {before}"
            f" {busy_before:.1f}: does it use the replicas that its command names?"
        )
    spacing, spacing_before = _spacing(case), _spacing(fewest)
    if not spacing or not spacing_before:
        return
    ratio = spacing_before / spacing
    times = f"{factor:g}"
    numbers = [_median(of, "num_readings") for of in (case, fewest)]
    if _is_like(ratio, factor) and _is_like(numbers[0], factor * numbers[1]):
        yield (
            f"With {replicas} the program printed {times} times as many numbers as with"
            f" {before}: do all its processes print the rate of all? Then one of them"
            " should, since the first numbers are warm-up."
        )
    elif _is_like(ratio, factor):
        yield (
            f"With {replicas} the printed rate accounts for {ratio:.1f} times as"
            f" much of the time between two numbers as with {before}: does it"
            " print the rate of one replica? Then use throughput_per_replica."
        )
    elif _is_like(ratio, factor**2):
        yield (
            f"With {replicas} the printed rates account for {ratio:.1f} times as much"
            f" of the time between two numbers as with {before}: does each process"
            f" print its own? Then the throughput is {times} times what is shown; let"
            " one process print the sum, or use throughput_per_replica."
        )


def _is_like(value: float, other: float) -> bool:
    return abs(value / other - 1) < _LIKE


def _median(case: Case, name: str) -> float:
    """Returns a figure of what a program's trials printed; 0 if it is not known."""
    found = [getattr(entry.result.readings, name, None) for entry in case.ok_entries]
    known = [value for value in found if value is not None]
    return float(statistics.median(known)) if known else 0.0


def _spacing(case: Case) -> float | None:
    """Returns the time between numbers over that of a global batch; None if unknown."""
    found = []
    for entry in case.ok_entries:
        readings, (rank, *_) = entry.result.readings, entry.result.ranks
        if readings is None or readings.evidence is not Evidence.WINDOW:
            return None
        window_ns = rank.window_end_ns - rank.window_start_ns
        found.append(window_ns / 1e9 / entry.result.window_sec)
    return statistics.median(found) if found else None


def limits(view: View) -> Iterator[str]:
    """Yields what the study does not show, one sentence each."""
    if unfit := why_unfit(view):
        yield unfit
    counts = sorted({len(c.shown_entries) for c in view.study.cases} - {0})
    if counts:
        yield (
            f"Intervals are 95 % over n = {formats.span(counts)} {view.repetitions} per"
            " case, each in a separate process; each covers 95 % by itself, not all of"
            " them jointly."
        )
    if view.is_relay:
        yield from sentences(view)
    yield from evidence_sentences(view.study)
    if text := why_implausible(view):
        yield text
    yield from matches(view)
    yield from same_work(view)
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
            f"The machine was not quiet: {load_text(load)}; more than "
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
