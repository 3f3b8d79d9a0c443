"""What a case loses against ideal scaling, from what every turn of a relay records.

Controls (``results/figures/lost_time.py``) explain more, but a study need not have
them. Every turn records the CPU time of the trial, how much of its cores others had
(other processes, and other guests of the hypervisor), and how long its runnable threads
waited for a core. With T the time of a step, c its CPU time, o the time of others and w
this wait, each per core, and ``ideal`` the step of the baseline with as many examples
per replica, the parts are

=============  =======================================================================
part           difference
=============  =======================================================================
ideal          T of the baseline, times the examples per replica relative to it
computing      c - c of ideal: the same examples take more CPU time. Shared caches and
               memory bandwidth, smaller batches, and the work of collectives
core_wait      w - w of ideal: runnable threads while others have the core, so w is at
               most o. Where more threads than cores are runnable, they also wait for
               one another; that costs no time of a core
idle           T - c - o, less that of ideal: cores without work. They wait for
               collectives, for the slowest replica or for input; which of them, only
               controls tell
unexplained    T(case) - all others: others had cores that no thread waited for
=============  =======================================================================

They sum to the step exactly, in every generation and therefore on average. Intervals
are Student's t over generations. Only for CPUs: the CPU time of a step on a GPU is not
what the step costs.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from results.figures import explain, lost_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from results.figures.lost_time import LostTime
    from results.figures.scaling import Point
    from results.records.models import ScalingMode, Turn
    from results.study.cases import Case, Entry

PARTS = ("ideal", "computing", "core_wait", "idle", "unexplained")
NO_CPU_TIME = "turns of this case or of its baseline have no duration or CPU time"
NOT_RECORDED = "the kernel does not record it here: part of unexplained"
NO_COMMON_ROUND = "no round of any generation has a valid turn of case and baseline"


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


def of_points(points: Iterable[Point]) -> tuple[RecordedLoss, ...]:
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
    reason = "" if steps else NO_COMMON_ROUND
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
    both = explain.rounds_of(case.result), explain.rounds_of(baseline.result)
    common = sorted(both[0].keys() & both[1].keys())
    if not common:
        return None
    here, there = (
        _mean(entry, rounds, common)
        for entry, rounds in zip((case, baseline), both, strict=True)
    )
    return here, there


def _mean(entry: Entry, rounds: explain.Rounds, common: list[int]) -> _Step:
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
