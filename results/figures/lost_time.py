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
from typing import TYPE_CHECKING, Final

import numpy as np

from results import errors
from results.records.models import Control, ScalingMode
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from results.figures.scaling import Point
    from results.records.models import TrialResult
    from results.statistics.estimates import Estimate
    from results.study.cases import Case, Entry, Study

    StepTimes = Mapping[Hashable, float]  # repetition -> mean seconds per step
    Rounds = Mapping[int, tuple[float, ...]]  # round -> the same of each process


METHOD = "Student's t of differences of step times over runs"
ONE_REPETITION = "no interval: one run tells nothing about other processes"
PARTS = (
    *("alone", "contention", "exposed_communication", "input", "imbalance"),
    *("update", "unexplained"),
)
"""Of a case with controls."""
RECORDED_PARTS = ("ideal", "computing", "run_queue_delay", "idle", "unexplained")
"""Of a case without controls, by what its blocks record."""
UNEXPLAINED: Final = "unexplained"
NO_LOSS = frozenset({"alone", "ideal", "step"})
"""Durations, which are never negative; the other parts are differences: losses."""
NO_COMMON_ROUND = (
    "no round of any run has a valid block of the case and of all its controls"
)
NO_COMMON_BLOCK = "no round of any run has a valid block of case and baseline"
NO_CPU_TIME = "blocks of this case or of its baseline have no duration or CPU time"
NOT_RECORDED = "the kernel does not record it here: part of unexplained"
_NEEDS = {
    "contention": ("independent",),
    "exposed_communication": ("nosync",),
    "imbalance": ("imbalance",),
    "input": ("synthetic", "baseline_synthetic"),
    "update": ("without_update", "baseline_without_update"),
}
"""The controls of each part; one replica waits for its own input and update too."""
FRACTION = 0.9
"""Least fraction of a step that the pipelines of an input-bound step take alone."""
_MOST: Final = 0.5
"""Of the loss: a part of less than half is not most of it."""
_CONTRADICTS: Final = 1.5
"""Of the loss: a part beyond this contradicts the parts that are negative."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str  # One of ``PARTS`` or ``RECORDED_PARTS``, or ``step``.
    time: Estimate | None  # Mean seconds over repetitions; None if it was not measured.
    # Why there is no value, or what else the value holds; empty if nothing.
    reason: str = ""
    # Mean share of the step over repetitions; None if it was not measured.
    share: Estimate | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputBound:
    """What the input pipelines of a case take alone."""

    input_sec: Estimate  # Seconds per step of the pipelines alone.
    fraction: Estimate  # Of the step of the case.
    verdict: str  # ``input-bound``, ``not input-bound`` or ``inconclusive``.
    # Whether it is input-bound, and the pipelines take longer than one replica.
    explains_loss: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LostTime:
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    case: Case  # The case.
    lost: LostTime | None  # The parts of its step, or None; ``reason`` says why.
    reason: str  # Why there are no parts; empty if there are.
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
    fraction = over_repetitions(input_only / case)
    verdict = "inconclusive"
    if fraction.low is not None and fraction.low >= FRACTION:
        verdict = "input-bound"
    elif fraction.high is not None and fraction.high < FRACTION:
        verdict = "not input-bound"
    return InputBound(
        input_sec=over_repetitions(input_only, "s"),
        fraction=fraction,
        verdict=verdict,
        explains_loss=verdict == "input-bound"
        and _is_above_zero(input_only - baseline),
    )


# A part is named if, each with the 95 % interval of Student's t over repetitions, there
# is a loss, the part is more than half of it, larger than every other part, and not
# beyond the loss by half of it: then two controls contradict each other. In the studies
# of ``test_lost_time.py`` the part that is named is the right one, or none is.
def name_of(parts: Mapping[str, np.ndarray], lost: np.ndarray) -> str:
    """The part that is most of a loss; empty if the measurement does not tell."""
    if not _is_above_zero(lost):
        return ""
    for name, values in parts.items():
        if name == UNEXPLAINED or not _is_above_zero(values - _MOST * lost):
            continue
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
    for name, times_of in measured.items():
        least = "at least 0" if name == "imbalance" else "positive"
        for repetition, value in times_of.items():
            is_right = value >= 0 if name == "imbalance" else value > 0
            if not (math.isfinite(value) and is_right):
                raise errors.ResultsError(
                    f"{name} has {value!r} seconds per step in run {repetition!r}, "
                    f"must be finite and {least}; leave out trials that are not ok"
                )
    common = [
        g
        for g in measured["case"]
        if all(g in times_of for times_of in measured.values())
    ]
    if not common:
        raise errors.ResultsError(
            f"no run has all of {', '.join(measured)}; a part is the difference of "
            "two step times of one run: measure the case and its controls together"
        )
    times = {
        name: np.array([times_of[g] for g in common])
        for name, times_of in measured.items()
    }
    values, reasons = _differences(times)
    if reasons:
        reasons[UNEXPLAINED] = f"includes {', '.join(reasons)}: not measured"
    lost = _split(times["case"], PARTS, values, reasons)
    if "input_only" not in times:
        return lost
    bound = judge_input_bound(times["case"], times["baseline"], times["input_only"])
    return dataclasses.replace(lost, input_bound=bound)


def _differences(
    times: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The measured parts by repetition, and why others are missing."""
    case, alone = times["case"], times["baseline"]
    values, reasons = {"alone": alone}, {}
    for part, controls in _NEEDS.items():
        absent = [name for name in controls if name not in times]
        if absent == ["imbalance"]:
            reasons[part] = (
                "the replicas share a process, or their processes were not timed one by"
                " one: part of unexplained"
            )
        elif absent:
            verb = "was" if len(absent) == 1 else "were"
            reasons[part] = (
                f"{' and '.join(absent)} {verb} not measured: part of unexplained"
            )
        elif part == "contention":
            values[part] = times["independent"] - alone
        elif part == "imbalance":
            values[part] = times["imbalance"]
        else:
            of_case, *of_alone = (times[name] for name in controls)
            values[part] = case - of_case
            for seconds in of_alone:
                values[part] = values[part] - (alone - seconds)
    return values, reasons


def _split(
    step: np.ndarray,
    names: Sequence[str],
    values: Mapping[str, np.ndarray],
    reasons: Mapping[str, str],
) -> LostTime:
    """Splits a step into its measured parts, and what is left as unexplained."""
    values = {**values, UNEXPLAINED: step - sum(values.values())}
    losses = {
        name: losses_of for name, losses_of in values.items() if name not in NO_LOSS
    }
    lost = step - values[names[0]]

    def part(name: str, losses_of: np.ndarray | None) -> Part:
        reason = reasons.get(name, "")
        if losses_of is None:
            return Part(name=name, time=None, reason=reason)
        time, share = (
            over_repetitions(losses_of, "s"),
            over_repetitions(losses_of / step),
        )
        if time.low is not None and name in NO_LOSS:
            time = dataclasses.replace(time, low=max(time.low, 0.0))
        return Part(name=name, time=time, reason=reason, share=share)

    return LostTime(
        step=part("step", step),
        parts=tuple(part(name, values.get(name)) for name in names),
        lost=part("lost", lost),
        main_loss=name_of(losses, lost),
    )


# Step times are means over the rounds in which the case and all its controls have a
# valid block: of the slowest process; of independent programs, the mean over processes.
# Explained are cases with a control whose baseline is one replica with the same batch.
# What differs between a case and its controls; programs of the independent control have
# their own backend.
_OF_CONTROL = {"repetition_index", "seed", "control"}
_OF_INDEPENDENT = {*_OF_CONTROL, "backend", "code_digest"}


def losses(study: Study, points: Iterable[Point]) -> tuple[Explained, ...]:
    """Returns where the time of each case went: by its controls, else by its blocks."""
    explained = explain(study)
    return *explained, *recorded_losses(points, explained)


def explain(study: Study) -> tuple[Explained, ...]:
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
        if alone := next(same, None):
            own = _controls_of(case, alone, controls)
            if own:
                explained.append(_explain({"case": case, "baseline": alone, **own}))
    return tuple(explained)


def _controls_of(case: Case, alone: Case, controls: Sequence[Case]) -> dict[str, Case]:
    """Returns the controls that explain a case, by their name in ``decompose``."""
    kinds = (
        ("nosync", Control.NOSYNC, case, _OF_CONTROL),
        ("independent", Control.INDEPENDENT, case, _OF_INDEPENDENT),
        ("synthetic", Control.SYNTHETIC, case, _OF_CONTROL),
        ("input_only", Control.INPUT_ONLY, case, _OF_CONTROL),
        ("baseline_synthetic", Control.SYNTHETIC, alone, _OF_CONTROL),
        ("without_update", Control.NO_UPDATE, case, _OF_CONTROL),
        ("baseline_without_update", Control.NO_UPDATE, alone, _OF_CONTROL),
    )
    by_name = {
        name: control
        for name, kind, subject, differs in kinds
        for control in controls
        if control.spec.control is kind
        and control.spec_without(differs) == subject.spec_without(differs)
    }
    # One replica without its input or update explains nothing on its own.
    return {} if all(name.startswith("baseline_") for name in by_name) else by_name


def _explain(cases: Mapping[str, Case]) -> Explained:
    entries = {
        name: {entry.key: entry for entry in by_key.ok_entries}
        for name, by_key in cases.items()
    }
    times: dict[str, dict[Hashable, float]] = {name: {} for name in cases}
    imbalance: dict[Hashable, float] = {}
    for key in entries["case"]:
        there = {name: by_key[key] for name, by_key in entries.items() if key in by_key}
        means = _means(there) if len(there) == len(cases) else {}
        for name, of_processes in means.items():
            times[name][key] = max(of_processes)
            if name == "independent":
                times[name][key] = math.fsum(of_processes) / len(of_processes)
        if len(means.get("nosync", ())) > 1:
            imbalance[key] = max(means["nosync"]) - min(means["nosync"])
    if imbalance:
        times["imbalance"] = imbalance
    return Explained(
        case=cases["case"],
        lost=decompose(**times) if times["case"] else None,
        reason="" if times["case"] else NO_COMMON_ROUND,
    )


def _means(entries: Mapping[str, Entry]) -> dict[str, tuple[float, ...]]:
    """Mean seconds per step of each process, over the rounds that all have."""
    rounds = {name: rounds_of(entry.result) for name, entry in entries.items()}
    common = set.intersection(*(set(columns) for columns in rounds.values()))
    if not common:
        return {}
    return {
        name: tuple(
            math.fsum(column) / len(common)
            for column in zip(
                *(columns[index] for index in sorted(common)), strict=True
            )
        )
        for name, columns in rounds.items()
    }


def rounds_of(result: TrialResult) -> Rounds:
    """Returns the mean seconds per step of each process, by round with a valid one."""
    return {
        index: tuple(math.fsum(times) / len(times) for times in of_processes)
        for index, of_processes in result.steps_of_blocks().items()
    }


def recorded_losses(
    points: Iterable[Point], explained: Iterable[Explained] = ()
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
    there = {entry.key: entry for entry in baseline.ok_entries}
    pairs = [(e, there[e.key]) for e in case.ok_entries if e.key in there]
    steps = [recorded for pair in pairs if (recorded := _recorded(*pair))]
    reason, lost = "" if steps else NO_COMMON_BLOCK, None
    sides = [side for both in steps for side in both]
    if any(side["time"] <= 0 or side["computing"] <= 0 for side in sides):
        reason = NO_CPU_TIME
    if not reason:
        scale = case.spec.per_replica_batch_size / baseline.spec.per_replica_batch_size
        values = {"ideal": np.array([alone["time"] * scale for _, alone in steps])}
        reasons = {}
        for name in ("computing", "run_queue_delay", "idle"):
            if all(name in side for side in sides):
                of_steps = [here[name] - alone[name] * scale for here, alone in steps]
                values[name] = np.array(of_steps)
            else:
                reasons[name] = NOT_RECORDED
        step = np.array([here["time"] for here, _ in steps])
        lost = _split(step, RECORDED_PARTS, values, reasons)
    return Explained(case=case, lost=lost, reason=reason, mode=mode, has_controls=False)


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
                name: math.fsum(times_of) / len(times_of)
                for name, times_of in seconds.items()
                if len(times_of) == len(common)
            }
        )
    return means if common else []
