"""How good the numbers are that a program prints: beside the clock of the harness."""

from __future__ import annotations

import collections
import enum
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from reports.words import formats
from results.records.models import Evidence

if TYPE_CHECKING:
    from results.study.cases import Case, Study


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
    evidence: Evidence | None  # None where no rate is read that a program prints.
    letter: str  # From A, the best, to D.
    reason: str

    @property
    def text(self) -> str:
        return f"grade {self.letter} of A to D: {self.reason}"


def grade(study: Study) -> Grade | None:
    program = study.program
    if program is None or program.is_client:
        is_measured = any(entry.is_ok for entry in study.planned)
        return Grade(None, "A", "the harness has the clock") if is_measured else None
    grades = {
        entry.result.readings.evidence
        for entry in study.planned
        if entry.is_ok and entry.result.readings is not None
    }
    if not grades:
        return None
    ranked = list(Evidence)
    worst = max(grades, key=ranked.index)
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


def caveat(study: Study) -> str:
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
        status, rank = entry.status, entry.result.ranks[0]
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


def sentences(study: Study) -> Iterator[str]:
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
    busy, busy_before = (_median(of_case, "busy_cores") for of_case in (case, fewest))
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
    numbers = [_median(of_case, "num_readings") for of_case in (case, fewest)]
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
    medians = [getattr(entry.result.readings, name, None) for entry in case.ok_entries]
    known = [value for value in medians if value is not None]
    return float(statistics.median(known)) if known else 0.0


def _spacing(case: Case) -> float | None:
    """Returns the time between numbers over that of a global batch; None if unknown."""
    spacings = []
    for entry in case.ok_entries:
        readings, (rank, *_) = entry.result.readings, entry.result.ranks
        if readings is None or readings.evidence is not Evidence.WINDOW:
            return None
        window_ns = rank.window_end_ns - rank.window_start_ns
        spacings.append(window_ns / 1e9 / entry.result.window_sec)
    return statistics.median(spacings) if spacings else None
