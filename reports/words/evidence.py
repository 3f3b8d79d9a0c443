"""How good the evidence of a study of a user's program is: its grade, and why.

Grades, the best first: A, the program's processes take turns and the harness has the
clock; B, numbers that it printed, each timed, in a window after warm-up; C, several
numbers without times; D, the last number. A study has the worst grade of its trials.
Numbers that the clock of the harness does not confirm are C at most, those that it
contradicts D.
"""

from __future__ import annotations

import collections
import enum
import statistics
from typing import TYPE_CHECKING, Final

from reports.words import formats
from results.records.models import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from results.study.cases import Case, Study

_GRADES: Final = {
    Evidence.WINDOW: ("B", "numbers that it printed or wrote, timed, after warm-up"),
    Evidence.ROWS: ("C", "numbers without times, after warm-up"),
    Evidence.LAST: ("D", "the last number that it printed"),
}
_OF_CLIENT: Final = (
    "grade A of A to D: its processes connect, the harness has the clock"
)
_BUSY: Final = 0.7
"""Of a core per replica, from which on a program computes rather than waits."""
_LIKE: Final = 0.15
"""Two numbers that differ by less than this part are taken for the same."""
_OFF: Final = 1.5
"""Times by which the rate of a line may be off the time between two lines."""


class Witness(enum.Enum):
    """What the clock of the harness says of the rates that a program claims."""

    CONFIRMS = "confirms"
    DOUBTS = "does not confirm"
    DENIES = "contradicts"


def grade(study: Study) -> tuple[Evidence | None, str] | None:
    """Returns the evidence of a study of a program, and its grade in words.

    The evidence is None of a program that takes turns: it prints no rate that is read.

    None for other studies, and where nothing was measured.
    """
    program = study.program
    if program is not None and program.is_client:
        is_measured = any(entry.is_ok for entry in study.planned)
        return (None, _OF_CLIENT) if is_measured else None
    found = {
        entry.result.readings.evidence
        for entry in study.planned
        if entry.is_ok and entry.result.readings is not None
    }
    if not found:
        return None
    worst = max(found, key=list(Evidence).index)
    letter, words = _GRADES[worst]
    heard = max((_witness(study, case) for case in _measured(study)), key=_ORDER.index)
    if heard is not Witness.CONFIRMS:
        least = Evidence.LAST if heard is Witness.DENIES else Evidence.ROWS
        worst = max(worst, least, key=list(Evidence).index)
        letter = _GRADES[worst][0]
        words = f"numbers that the harness's clock {heard.value}"
    return worst, f"grade {letter} of A to D: {words}"


_ORDER: Final = list(Witness)


def _measured(study: Study) -> list[Case]:
    return [case for case in study.cases if case.ok_entries]


def caveat(study: Study) -> str:
    """Says which case the clock of the harness contradicts, or does not confirm."""
    program = study.program
    if program is None or program.is_client:
        return ""
    found = [(_witness(study, case), case) for case in _measured(study)]
    found = [item for item in found if item[0] is not Witness.CONFIRMS]
    if not found:
        return ""
    heard, case = max(found, key=lambda item: _ORDER.index(item[0]))
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
    every = formats.significant(spacing)
    if program.steps_per_line is not None:
        return f"{start} A line is said to be of {program.steps_per_line} steps."
    return (
        f"{start} If a line is of {every} steps, write [every N] behind the name of"
        " --metric; else the numbers are in another unit (ms read as s, a rate per"
        " hour), or leave time out."
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


def sentences(study: Study) -> Iterator[str]:
    """Yields what limits the figures of a program, one sentence each."""
    program = study.program
    if program is None or program.is_client:
        return
    yield (
        f"The rates are what the program says ({program.metric}), and whole runs of it"
        " alternate; nothing shows that its replicas do the work of one."
    )
    if text := caveat(study):
        yield text
    remarks: collections.Counter[str] = collections.Counter()
    for entry in study.planned:
        if entry.is_ok and entry.result.readings is not None:
            remarks.update(entry.result.readings.remarks)
    for remark, number in remarks.items():
        yield f"In {formats.count(number, 'trial')} of the program, {remark}."
    measured = [case for case in study.cases if case.ok_entries]
    if measured:
        fewest = min(measured, key=lambda case: case.spec.num_replicas)
        for case in measured:
            if case.spec.num_replicas > fewest.spec.num_replicas:
                yield from _suspicions(case, fewest)


def _suspicions(case: Case, fewest: Case) -> Iterator[str]:
    """Yields what suggests that a program does not do what its command asks for."""
    before_count = fewest.spec.num_replicas
    factor = case.spec.num_replicas / before_count
    replicas = formats.count(case.spec.num_replicas, "replica")
    before = formats.count(before_count, "replica")
    busy, busy_before = _busy(case), _busy(fewest)
    is_pinned = case.is_oversubscribed or case.spec.device != "cpu"
    is_busy = busy > _BUSY * before_count and busy_before > _BUSY * before_count
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
    if _is_like(ratio, factor) and _is_like(_number(case), factor * _number(fewest)):
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


def _number(case: Case) -> float:
    """Returns how many numbers a trial printed; its entries have readings."""
    return statistics.median(
        entry.result.readings.num_readings
        for entry in case.ok_entries
        if entry.result.readings is not None
    )


def _busy(case: Case) -> float:
    """Returns the cores that a case kept busy; 0 if it is not known."""
    known = [
        entry.result.readings.busy_cores
        for entry in case.ok_entries
        if entry.result.readings is not None
        and entry.result.readings.busy_cores is not None
    ]
    return statistics.median(known) if known else 0.0


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
