"""Where the time of a step went: what N replicas lose against one replica alone.

A part is the difference of two step times of one repetition, so that slow phases of the
machine cancel, and the parts of a case add up to its step. With T the mean time of a
step, controls tell

- alone: T(one replica), with its own input and update;
- contention: T(independent), of programs that never communicate, less T(one replica);
- exposed_communication: T(case) - T(nosync);
- input and update: T(case) - T(synthetic) and T(case) - T(no_update), each less the
  same difference of one replica;
- imbalance: slowest less fastest process of nosync;
- unexplained: T(case) less all others; what has no control is in here, too.

Without controls, blocks record CPU time c, the time of others o, and how long runnable
threads waited for a core w, each per step and core. They tell, each less the same of
the baseline:

- ideal: T(baseline) times the examples per replica, relative to it;
- computing: c; caches, memory bandwidth, smaller batches, the work of collectives;
- run_queue_delay: w, at most o: threads that wait for one another cost no core;
- idle: T - c - o; cores that wait for collectives, the slowest replica or input.

All but ``alone`` and ``ideal`` are losses. One that is negative is noise, or two
controls take away the same time. On GPUs, CPU time is not what a step costs.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from results.figures import scaling
from results.records.models import Control, ScalingMode
from results.statistics import estimates

if TYPE_CHECKING:
    from results.figures.scaling import Point
    from results.records.models import TrialResult
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry, Study

    StepTimes = Mapping[Any, float]  # repetition -> mean seconds per step
    Rounds = Mapping[int, tuple[float, ...]]  # round -> the same of each process
    Values = Mapping[str, np.ndarray]  # by repetition


METHOD = "Student's t of differences of step times over runs"
ONE_REPETITION = "no interval: one run tells nothing about other processes"
UNEXPLAINED: Final = "unexplained"
_DIFFERENCES: Final[Mapping[str, Mapping[str, int]]] = {
    "alone": {"baseline": 1},
    "contention": {"independent": 1, "baseline": -1},
    "exposed_communication": {"case": 1, "nosync": -1},
    "input": {"case": 1, "synthetic": -1, "baseline": -1, "baseline_synthetic": 1},
    "imbalance": {"imbalance": 1},
    "update": {
        "case": 1,
        "without_update": -1,
        "baseline": -1,
        "baseline_without_update": 1,
    },
}
"""The step times of each part, and their signs: one replica, too, waits for input."""
PARTS = (*_DIFFERENCES, UNEXPLAINED)
"""Of a case with controls."""
_RECORDED = ("computing", "run_queue_delay", "idle")
RECORDED_PARTS = ("ideal", *_RECORDED, UNEXPLAINED)
"""Of a case without controls, by what its blocks record."""
NO_LOSS = frozenset({"alone", "ideal", "step"})
"""Durations, which are never negative; the other parts are differences: losses."""
NO_COMMON_ROUND = (
    "no round of any run has a valid block of the case and of all its controls"
)
NO_COMMON_BLOCK = "no round of any run has a valid block of case and baseline"
NO_CPU_TIME = "blocks of this case or of its baseline have no duration or CPU time"
NOT_RECORDED = "the kernel does not record it here: part of unexplained"
_ONE_PROCESS = (
    "the replicas share a process, or their processes were not timed one by one: part"
    " of unexplained"
)
FRACTION = 0.9
"""Least fraction of a step that the pipelines of an input-bound step take alone."""
_MOST: Final = 0.5
"""Of the loss: a part of less than half is not most of it."""
_CONTRADICTS: Final = 1.5
"""Of the loss: a part beyond this contradicts the parts that are negative."""


class Part(NamedTuple):
    """A part of a step."""

    name: str  # One of ``PARTS`` or ``RECORDED_PARTS``, or ``step``.
    time: Estimate | None  # Mean seconds over repetitions; None if it was not measured.
    # Why there is no value, or what else the value holds; empty if nothing.
    reason: str = ""
    # Mean share of the step over repetitions; None if it was not measured.
    share: Estimate | None = None


class InputBound(NamedTuple):
    """What the input pipelines of a case take alone."""

    input_sec: Estimate  # Seconds per step of the pipelines alone.
    fraction: Estimate  # Of the step of the case.
    verdict: str  # ``input-bound``, ``not input-bound`` or ``inconclusive``.
    # Whether it is input-bound, and the pipelines take longer than one replica.
    explains_loss: bool


class LostTime(NamedTuple):
    """The parts of a step, which add up to it."""

    step: Part  # The case; its value is the sum of the values of all parts.
    parts: tuple[Part, ...]  # In the order of their names.
    lost: Part  # The step less that of one replica.
    # The part that is most of it; empty if the measurement does not tell.
    main_loss: str
    # What the input pipelines take alone, no part of the sum; None if not measured.
    input_bound: InputBound | None = None

    @property
    def whole(self) -> Estimate:
        assert self.step.time is not None
        return self.step.time

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


class Explained(NamedTuple):
    """Where the time of a case went, or why that is not known."""

    case: Case
    lost: LostTime | None  # The parts of its step, or None; ``reason`` says why.
    reason: str = ""  # Why there are no parts; empty if there are.
    mode: ScalingMode = ScalingMode.WEAK  # Weak wherever controls explain it.
    has_controls: bool = True  # Otherwise it is by what the blocks record.


def over_repetitions(values: np.ndarray, unit: str = "") -> Estimate:
    mean = estimates.one_group(values)
    return mean.estimate(METHOD, otherwise=ONE_REPETITION, unit=unit)


def _is_above_zero(values: np.ndarray) -> bool:
    low = over_repetitions(values).low
    return low is not None and low > 0


# Input-bound: the interval of T(input_only) / T(case) is at or above ``FRACTION``. The
# pipelines run beside the step, so this is a lower limit of what they take, and no part
# of the sum. It explains a loss where T(input_only) is above T(one replica) as well.
def judge_input_bound(
    case: np.ndarray, baseline: np.ndarray, input_only: np.ndarray
) -> InputBound:
    """Judges whether the input pipelines of a case bound its step.

    Given are seconds per step by repetition: of the case, of one replica, and of the
    pipelines of the case alone.
    """
    fraction = over_repetitions(input_only / case)
    verdict = "inconclusive"
    if fraction.low is not None and fraction.low >= FRACTION:
        verdict = "input-bound"
    elif fraction.high is not None and fraction.high < FRACTION:
        verdict = "not input-bound"
    is_more = verdict == "input-bound" and _is_above_zero(input_only - baseline)
    return InputBound(over_repetitions(input_only, "s"), fraction, verdict, is_more)


# A part is named if, each with the 95 % interval of Student's t over repetitions, there
# is a loss, the part is more than half of it, larger than every other part, and not
# beyond the loss by half of it: then two controls contradict each other. In the studies
# of ``test_lost_time.py`` the part that is named is the right one, or none is.
def _main_loss(parts: Values, lost: np.ndarray) -> str:
    """The part that is most of a loss; empty if the measurement does not tell."""
    if not _is_above_zero(lost):
        return ""
    for name, values in parts.items():
        if name != UNEXPLAINED and _is_above_zero(values - _MOST * lost):
            others = (names for other, names in parts.items() if other != name)
            is_largest = all(_is_above_zero(values - other) for other in others)
            contradicts = _is_above_zero(values - _CONTRADICTS * lost)
            return name if is_largest and not contradicts else ""
    return ""


def decompose(**measured: StepTimes) -> LostTime:
    """Splits the step of a case into parts that add up to it.

    Given are seconds per step by repetition, of ``case``, ``baseline`` (one replica),
    controls by name, and ``imbalance``: slowest less fastest process of ``nosync``.
    """
    common = [
        key for key in measured["case"] if all(key in of for of in measured.values())
    ]
    times = {
        name: np.array([of[key] for key in common]) for name, of in measured.items()
    }
    values: dict[str, np.ndarray] = {}
    reasons: dict[str, str] = {}
    for part, signs in _DIFFERENCES.items():
        absent = [name for name in signs if name not in times]
        if not absent:
            values[part] = sum(
                (sign * times[name] for name, sign in signs.items()), np.zeros(1)
            )
        elif absent == ["imbalance"]:
            reasons[part] = _ONE_PROCESS
        else:
            were = "was" if len(absent) == 1 else "were"
            names = " and ".join(absent)
            reasons[part] = f"{names} {were} not measured: part of unexplained"
    if reasons:
        reasons[UNEXPLAINED] = f"includes {', '.join(reasons)}: not measured"
    lost = _split(times["case"], PARTS, values, reasons)
    if "input_only" not in times:
        return lost
    bound = judge_input_bound(times["case"], times["baseline"], times["input_only"])
    return lost._replace(input_bound=bound)


def _split(
    step: np.ndarray, names: Sequence[str], values: Values, reasons: Mapping[str, str]
) -> LostTime:
    """Splits a step into its measured parts, and what is left as unexplained."""
    values = {**values, UNEXPLAINED: step - sum(values.values())}
    lost = step - values[names[0]]

    def part(name: str, seconds: np.ndarray | None) -> Part:
        reason = reasons.get(name, "")
        if seconds is None:
            return Part(name, None, reason)
        time = over_repetitions(seconds, "s")
        if time.low is not None and name in NO_LOSS:
            time = dataclasses.replace(time, low=max(time.low, 0.0))
        share = over_repetitions(seconds / step)
        return Part(name, time, reason, share)

    losses = {name: of for name, of in values.items() if name not in NO_LOSS}
    parts = tuple(part(name, values.get(name)) for name in names)
    main_loss = _main_loss(losses, lost)
    return LostTime(part("step", step), parts, part("lost", lost), main_loss)


# Step times are means over the rounds in which the case and all its controls have a
# valid block: of the slowest process; of independent programs, the mean over processes.
# Explained are cases with a control whose baseline is one replica with the same batch.
# What differs between a case and its controls; programs of the independent control have
# their own backend.
_OF_CONTROL = {"repetition_index", "seed", "control"}
_OF_INDEPENDENT = {*_OF_CONTROL, "backend", "code_digest"}
_CONTROLS: Final = {
    "nosync": Control.NOSYNC,
    "independent": Control.INDEPENDENT,
    "synthetic": Control.SYNTHETIC,
    "input_only": Control.INPUT_ONLY,
    "baseline_synthetic": Control.SYNTHETIC,
    "without_update": Control.NO_UPDATE,
    "baseline_without_update": Control.NO_UPDATE,
}
"""By their name in ``decompose``; some are of the baseline."""


def losses(
    study: Study, points: Iterable[Point] | None = None
) -> tuple[Explained, ...]:
    """Returns where the time of each case went: by its controls, else by its blocks.

    ``points`` are those of the study, where they are known already.
    """
    explained = _explain_all(study)
    known = scaling.points(study) if points is None else points
    return *explained, *_recorded_losses(known, explained)


def _explain_all(study: Study) -> tuple[Explained, ...]:
    """Returns where the time of every case with a control went, in planned order."""
    controls = [case for case in study.controls if case.ok_entries]
    ok = [case for case in study.cases if case.ok_entries]
    explained = []
    for case in ok:
        if not (case.is_interleaved and case.spec.num_replicas > 1):
            continue
        wanted = case.spec_without(_OF_CONTROL) | {
            "num_replicas": 1,
            "global_batch_size": case.spec.per_replica_batch_size,
        }
        same = (other for other in ok if other.spec_without(_OF_CONTROL) == wanted)
        if (alone := next(same, None)) is None:
            continue
        own = {}
        for name, kind in _CONTROLS.items():
            subject = alone if name.startswith("baseline_") else case
            differs = _OF_INDEPENDENT if name == "independent" else _OF_CONTROL
            for control in controls:
                if control.spec.control is kind and control.spec_without(
                    differs
                ) == subject.spec_without(differs):
                    own[name] = control
        # One replica without its input or update explains nothing on its own.
        if not all(name.startswith("baseline_") for name in own):
            explained.append(_explain({"case": case, "baseline": alone, **own}))
    return tuple(explained)


def _explain(cases: Mapping[str, Case]) -> Explained:
    entries = {
        name: {e.key: e for e in case.ok_entries} for name, case in cases.items()
    }
    times: dict[str, dict[Any, float]] = {name: {} for name in cases}
    imbalance: dict[Any, float] = {}
    for key in entries["case"]:
        there = [of_case[key] for of_case in entries.values() if key in of_case]
        if len(there) < len(cases):
            continue
        rounds = [rounds_of(entry.result) for entry in there]
        common = sorted(set.intersection(*map(set, rounds)))
        for name, of_rounds in zip(cases, rounds if common else (), strict=False):
            columns = zip(*(of_rounds[index] for index in common), strict=True)
            means = [math.fsum(column) / len(common) for column in columns]
            times[name][key] = max(means)
            if name == "independent":
                times[name][key] = statistics.fmean(means)
            elif name == "nosync" and len(means) > 1:
                imbalance[key] = max(means) - min(means)
    if imbalance:
        times["imbalance"] = imbalance
    if not times["case"]:
        return Explained(cases["case"], None, NO_COMMON_ROUND)
    return Explained(cases["case"], decompose(**times))


def rounds_of(result: TrialResult) -> Rounds:
    """Returns the mean seconds per step of each process, by round with a valid one."""
    return {
        index: tuple(math.fsum(times) / len(times) for times in of_processes)
        for index, of_processes in result.steps_of_blocks().items()
    }


def _recorded_losses(
    points: Iterable[Point], explained: Iterable[Explained]
) -> tuple[Explained, ...]:
    """Splits the step of every case with a speedup on CPUs that no control explains."""
    with_controls = {item.case.case_id for item in explained if item.lost is not None}
    return tuple(
        _recorded_loss(point.case, point.baseline, point.mode)
        for point in points
        if point.speedup is not None
        and point.baseline is not None
        and not point.is_baseline
        and point.case.is_interleaved
        and point.case.spec.device == "cpu"
        and point.case.case_id not in with_controls
    )


def _recorded_loss(case: Case, baseline: Case, mode: ScalingMode) -> Explained:
    pairs = scaling.paired(case, baseline)
    steps = [recorded for pair in pairs if (recorded := _recorded(*pair))]
    reason, lost = "" if steps else NO_COMMON_BLOCK, None
    sides = [side for both in steps for side in both]
    if any(side["time"] <= 0 or side["computing"] <= 0 for side in sides):
        reason = NO_CPU_TIME
    if not reason:
        scale = case.spec.per_replica_batch_size / baseline.spec.per_replica_batch_size
        values = {"ideal": np.array([alone["time"] * scale for _, alone in steps])}
        known = [name for name in _RECORDED if all(name in side for side in sides)]
        for name in known:
            of_steps = [here[name] - alone[name] * scale for here, alone in steps]
            values[name] = np.array(of_steps)
        reasons = dict.fromkeys({*_RECORDED} - {*known}, NOT_RECORDED)
        step = np.array([here["time"] for here, _ in steps])
        lost = _split(step, RECORDED_PARTS, values, reasons)
    return Explained(case, lost, reason, mode, has_controls=False)


def _recorded(*pair: Entry) -> list[dict[str, float]]:
    """Returns mean seconds per step and core of a case and of its baseline."""
    rounds = [rounds_of(entry.result) for entry in pair]
    common = sorted(rounds[0].keys() & rounds[1].keys())
    means = []
    for entry, of_rounds in zip(pair, rounds, strict=True):
        cores = entry.spec.num_replicas * entry.spec.cores_per_replica
        seconds: dict[str, list[float]] = collections.defaultdict(list)
        blocks = entry.result.blocks
        valid = {t.round_index: t for t in blocks if t.is_valid and not t.is_sustained}
        for block, time in ((valid[index], max(of_rounds[index])) for index in common):
            computing = (block.user_sec + block.system_sec) / block.num_steps / cores
            seconds["time"].append(time)
            seconds["computing"].append(computing)
            if block.foreign_cpu_fraction is None:
                continue
            # Counted in ticks, others and the trial can exceed the block.
            others = min(block.others * time, max(time - computing, 0.0))
            seconds["idle"].append(max(time - computing - others, 0.0))
            if block.run_delay_sec is not None:
                wait = block.run_delay_sec / block.num_steps / cores
                seconds["run_queue_delay"].append(min(wait, others))
        means.append(
            {
                name: statistics.fmean(times_of)
                for name, times_of in seconds.items()
                if len(times_of) == len(common)
            }
        )
    return means if common else []
