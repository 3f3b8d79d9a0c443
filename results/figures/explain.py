"""Where the time of each case went, from the turns of the case and of its controls.

From a study to ``lost_time.Observed``. Step times are means over the rounds in which
the case and all its controls have a valid turn, so that all parts are from the same
moments: those of the slowest process; for ``solo``, whose programs do not wait for each
other, the mean over processes. Only cases with a control are explained, and only where
one replica with the same batch is a case too: in weak scaling.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from results.figures import lost_time
from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from results.figures.lost_time import LostTime
    from results.figures.scaling import Point
    from results.records.models import ScalingMode, TrialResult, Turn
    from results.study.cases import Case, Entry, Study

    Rounds = Mapping[int, tuple[float, ...]]


NO_COMMON_ROUND = (
    "no round of any run has a valid block of the case and of all its controls"
)

_REPETITION = {"repetition_index", "seed"}
# What differs between a case and its controls; programs of solo have their own backend.
_OF_CONTROL = {*_REPETITION, "control"}
_OF_SOLO = {*_OF_CONTROL, "backend", "code_digest"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """A case and where its time went."""

    case: Case  # The case.
    # The case, its single replica and its controls: all that is compared.
    cases: tuple[Case, ...]
    lost: LostTime | None  # The parts of its step, or None; ``reason`` says why.
    reason: str  # Why there are no parts; empty if there are.

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Trials behind the parts."""
        return tuple(entry.trial_id for case in self.cases for entry in case.ok_entries)

    @property
    def num_measured(self) -> int:
        """Parts that have a value."""
        if self.lost is None:
            return 0
        return sum(part.value_sec is not None for part in self.lost.parts)


def explain(study: Study) -> tuple[Explained, ...]:
    """Returns where the time of every case with a control went, in planned order."""
    controls = [case for case in study.controls if case.ok_entries]
    found = []
    for case in study.cases:
        if not (case.ok_entries and case.is_in_relay and case.spec.num_replicas > 1):
            continue
        alone = _alone(case, study.cases)
        own = None if alone is None else _controls_of(case, alone, controls)
        if alone is not None and own:
            found.append(_explain(case, alone, own))
    return tuple(found)


def _alone(case: Case, cases: Iterable[Case]) -> Case | None:
    """Returns one replica of the same backend with the same batch, if it is ok."""
    wanted = _same_but(case, _OF_CONTROL) | {
        "num_replicas": 1,
        "global_batch_size": case.spec.per_replica_batch_size,
    }
    for other in cases:
        if other.ok_entries and _same_but(other, _OF_CONTROL) == wanted:
            return other
    return None


def _controls_of(case: Case, alone: Case, controls: Sequence[Case]) -> dict[str, Case]:
    """Returns the controls that explain a case, by their name in ``Observed``."""
    kinds = (
        ("nosync", Control.NOSYNC, case, _OF_CONTROL),
        ("solo", Control.SOLO, case, _OF_SOLO),
        ("synthetic", Control.SYNTHETIC, case, _OF_CONTROL),
        ("input_only", Control.INPUT_ONLY, case, _OF_CONTROL),
        ("baseline_synthetic", Control.SYNTHETIC, alone, _OF_CONTROL),
        ("without_update", Control.NO_UPDATE, case, _OF_CONTROL),
        ("baseline_without_update", Control.NO_UPDATE, alone, _OF_CONTROL),
    )
    found = {
        name: control
        for name, kind, of, differs in kinds
        for control in controls
        if control.spec.control is kind
        and _same_but(control, differs) == _same_but(of, differs)
    }
    # One replica without its input or update explains nothing on its own.
    of_alone = {"baseline_synthetic", "baseline_without_update"}
    return {} if found.keys() <= of_alone else found


def _same_but(case: Case, differs: set[str]) -> dict[str, Any]:
    return case.spec.model_dump(mode="json", exclude=differs)


def _explain(case: Case, alone: Case, controls: Mapping[str, Case]) -> Explained:
    cases = {"case": case, "baseline": alone, **controls}
    entries = {
        name: {entry.key: entry for entry in of.ok_entries}
        for name, of in cases.items()
    }
    times: dict[str, dict[Hashable, float]] = {name: {} for name in cases}
    imbalance: dict[Hashable, float] = {}
    for key, entry in entries["case"].items():
        there = {name: of[key] for name, of in entries.items() if key in of}
        # A generation that lacks a case or its rounds stays: it is counted as left out.
        means = _means(there) or _means({"case": entry})
        for name, of_processes in means.items():
            times[name][key] = _one(name, of_processes)
        if len(means.get("nosync", ())) > 1:
            imbalance[key] = max(means["nosync"]) - min(means["nosync"])
    observed = lost_time.Observed(**times, imbalance=imbalance or None)
    is_any_complete = any(
        all(key in of for of in times.values()) for key in times["case"]
    )
    return Explained(
        case=case,
        cases=tuple(cases.values()),
        lost=lost_time.decompose(observed) if is_any_complete else None,
        reason="" if is_any_complete else NO_COMMON_ROUND,
    )


def _means(entries: Mapping[str, Entry]) -> dict[str, tuple[float, ...]]:
    """Mean seconds per step of each process, over the rounds that all have."""
    rounds = {name: rounds_of(entry.result) for name, entry in entries.items()}
    common = set.intersection(*(set(of) for of in rounds.values()))
    if not common:
        return {}
    return {
        name: tuple(
            math.fsum(column) / len(common)
            for column in zip(*(of[index] for index in sorted(common)), strict=True)
        )
        for name, of in rounds.items()
    }


def rounds_of(result: TrialResult) -> Rounds:
    """Returns the mean seconds per step of each process, by round with a valid turn.

    Sustained stretches of a gate are counted apart, and are no rounds.
    """
    found: dict[int, tuple[float, ...]] = {}
    first = 0
    for turn in result.turns:
        last = first + turn.num_steps
        if turn.is_valid and not turn.is_sustained:
            found[turn.round_index] = tuple(
                math.fsum(rank.step_time_sec[first:last]) / turn.num_steps
                for rank in result.ranks
            )
        first = last
    return found


def _one(name: str, of_processes: Sequence[float]) -> float:
    """The step of a trial: of its slowest process; of solo, the mean over all."""
    if name == "solo":
        return math.fsum(of_processes) / len(of_processes)
    return max(of_processes)


# Controls (``results/figures/lost_time.py``) explain more, but a study need not have
# them. Every turn records the CPU time of the trial, how much of its cores others had
# (other processes, and other guests of the hypervisor), and how long its runnable
# threads waited for a core. With T the time of a step, c its CPU time, o the time of
# others and w this wait, each per core, and ``ideal`` the step of the baseline with as
# many examples per replica, the parts are
#
# =============  =======================================================================
# part           difference
# =============  =======================================================================
# ideal          T of the baseline, times the examples per replica relative to it
# computing      c - c of ideal: the same examples take more CPU time. Shared caches and
#                memory bandwidth, smaller batches, and the work of collectives
# core_wait      w - w of ideal: runnable threads while others have the core, so w is at
#                most o. Where more threads than cores are runnable, they also wait for
#                one another; that costs no time of a core
# idle           T - c - o, less that of ideal: cores without work. They wait for
#                collectives, for the slowest replica or for input; which of them, only
#                controls tell
# unexplained    T(case) - all others: others had cores that no thread waited for
# =============  =======================================================================
#
# They sum to the step exactly, in every generation and therefore on average. Intervals
# are Student's t over generations. Only for CPUs: the CPU time of a step on a GPU is
# not what the step costs.

PARTS = ("ideal", "computing", "core_wait", "idle", "unexplained")
NO_CPU_TIME = "blocks of this case or of its baseline have no duration or CPU time"
NOT_RECORDED = "the kernel does not record it here: part of unexplained"
NO_COMMON_TURN = "no round of any run has a valid block of case and baseline"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecordedLoss:
    """A case in one scaling mode, and the parts of its step."""

    case: Case  # The case.
    baseline: Case  # What it is compared with.
    mode: ScalingMode  # Weak or strong.
    lost: LostTime | None  # The parts of its step, or None; ``reason`` says why.
    reason: str  # Why there are no parts; empty if there are.

    @property
    def trial_ids(self) -> tuple[str, ...]:
        """Trials behind the parts."""
        entries = (*self.case.ok_entries, *self.baseline.ok_entries)
        return tuple(entry.trial_id for entry in entries)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """Mean seconds per step and core; None where the kernel does not record it."""

    time: float
    computing: float
    core_wait: float | None
    idle: float | None


def losses_of_points(points: Iterable[Point]) -> tuple[RecordedLoss, ...]:
    """Splits the step of every case that has a speedup on CPUs, in planned order."""
    return tuple(
        _split(point.case, point.baseline, point.mode)
        for point in points
        if point.speedup is not None
        and point.baseline is not None
        and not point.is_baseline
        and point.case.is_in_relay
        and point.case.spec.device == "cpu"
    )


def _split(case: Case, baseline: Case, mode: ScalingMode) -> RecordedLoss:
    there = {entry.key: entry for entry in baseline.ok_entries}
    pairs = [(e, there[e.key]) for e in case.ok_entries if e.key in there]
    steps = [found for pair in pairs if (found := _steps(*pair)) is not None]
    reason = "" if steps else NO_COMMON_TURN
    if any(step.time <= 0 or step.computing <= 0 for both in steps for step in both):
        reason = NO_CPU_TIME
    return RecordedLoss(
        case=case,
        baseline=baseline,
        mode=mode,
        lost=None if reason else _parts(case, baseline, steps),
        reason=reason,
    )


def _parts(case: Case, baseline: Case, steps: list[tuple[_Step, _Step]]) -> LostTime:
    scale = case.spec.per_replica_batch_size / baseline.spec.per_replica_batch_size
    values = {"ideal": np.array([alone.time * scale for _, alone in steps])}
    reasons: dict[str, str] = {}
    for name in ("computing", "core_wait", "idle"):
        pairs = [(getattr(here, name), getattr(alone, name)) for here, alone in steps]
        if any(value is None for pair in pairs for value in pair):
            reasons[name] = NOT_RECORDED
        else:
            values[name] = np.array([here - alone * scale for here, alone in pairs])
    return lost_time.split(
        np.array([here.time for here, _ in steps]),
        values,
        reasons,
        names=PARTS,
        num_left_out=len(case.ok_entries) - len(steps),
    )


def _steps(case: Entry, baseline: Entry) -> tuple[_Step, _Step] | None:
    """Means over the rounds in which both have a valid turn, or None without any."""
    both = rounds_of(case.result), rounds_of(baseline.result)
    common = sorted(both[0].keys() & both[1].keys())
    if not common:
        return None
    here, there = (
        _mean(entry, rounds, common)
        for entry, rounds in zip((case, baseline), both, strict=True)
    )
    return here, there


def _mean(entry: Entry, rounds: Rounds, common: list[int]) -> _Step:
    cores = entry.spec.num_replicas * entry.spec.cores_per_replica
    valid = {
        turn.round_index: turn
        for turn in entry.result.turns
        if turn.is_valid and not turn.is_sustained
    }
    turns = [_of_turn(valid[index], max(rounds[index]), cores) for index in common]

    def mean(name: str) -> float | None:
        known = [value for of in turns if (value := getattr(of, name)) is not None]
        return math.fsum(known) / len(known) if len(known) == len(turns) else None

    time, computing = mean("time"), mean("computing")
    assert time is not None
    assert computing is not None
    return _Step(
        time=time,
        computing=computing,
        core_wait=mean("core_wait"),
        idle=mean("idle"),
    )


def _of_turn(turn: Turn, time: float, cores: int) -> _Step:
    """Returns a turn per step and core."""
    computing = (turn.user_sec + turn.system_sec) / turn.num_steps / cores
    if turn.foreign_cpu_fraction is None:
        return _Step(time=time, computing=computing, core_wait=None, idle=None)
    others = (turn.foreign_cpu_fraction + (turn.stolen_cpu_fraction or 0.0)) * time
    # The kernel counts others in ticks, so with the trial they can exceed the turn.
    others = min(others, max(time - computing, 0.0))
    wait = turn.run_delay_sec
    return _Step(
        time=time,
        computing=computing,
        core_wait=None if wait is None else min(wait / turn.num_steps / cores, others),
        idle=max(time - computing - others, 0.0),
    )
