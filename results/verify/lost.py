"""Where the time of a step went, a second time, from raw turns.

For ``verify``. Both splits are computed anew: that of ``results/figures/lost_time.py``
from step times of a case and its controls, and that of ``recorded_loss.py`` from CPU
time and load within turns. Nothing of theirs is used but what they state.
"""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING, Any, Final

from results.figures import explain, recorded_loss, scaling
from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from results.figures.lost_time import LostTime, Part
    from results.study.cases import Case, Study
    from results.verify.check import Check
    from results.verify.raw_trial import RawTrial

    Numbers = dict[str, float | None]

KIND: Final = "parts of steps"
_TOLERANCE: Final = 1e-9
"""Of the step: differences of step times have no relative accuracy of their own."""
_Key = tuple[int, int]


class _Raw:
    """Raw turns of the trials of a study, as splits need them."""

    def __init__(self, raws: Mapping[str, RawTrial]) -> None:
        self._raws = raws

    def of(self, case: Case) -> dict[_Key, dict[str, Any]]:
        """Returns the raw results of a case's ok trials, by repetition."""
        found = {}
        for entry in case.ok_entries:
            raw = self._raws[entry.trial_id]
            if not raw.has_loads:
                raise LookupError(entry.trial_id)
            found[entry.spec.repetition_index, entry.spec.seed] = raw.result
        return found


def compare(study: Study, raws: Mapping[str, RawTrial], check: Check) -> None:
    """Compares all parts of all steps of a relay."""
    found = _Raw(raws)
    for item in explain.explain(study):
        if item.lost is not None:
            _compare(
                item.lost,
                item.case.label,
                check,
                functools.partial(_of_controls, item, found),
            )
    for of in recorded_loss.of_points(scaling.points(study)):
        if of.lost is not None:
            where = f"{of.case.label}, {of.mode.value}"
            _compare(of.lost, where, check, functools.partial(_of_turns, of, found))


def _compare(
    lost: LostTime, where: str, check: Check, recompute: Callable[[], list[Numbers]]
) -> None:
    try:
        generations = recompute()
    except LookupError as error:
        check.lack(KIND, f"{KIND} of {where}: trial {error} has no raw observations")
        return
    if not generations:
        check.differ(KIND, f"{KIND} of {where}", "numbers", "no turn that counts")
        return
    whole = statistics.fmean(of["step"] or 0.0 for of in generations)
    for part in (*lost.parts, lost.step, lost.lost):
        values = [of.get(part.name) for of in generations]
        if _is_same(part, [v for v in values if v is not None], _TOLERANCE * whole):
            check.agree(KIND)
        else:
            check.differ(KIND, f"{part.name} of {where}", part.time, values)


def _is_same(part: Part, values: Sequence[float], tolerance: float) -> bool:
    if part.time is None or not values:
        return part.time is None and not values
    centre = statistics.fmean(values)
    is_same = abs(part.time.value - centre) <= tolerance and part.time.n == len(values)
    if len(values) == 1 or not is_same:
        return is_same and part.time.low is None
    from scipy import stats

    half = float(stats.t.isf(0.025, len(values) - 1) * stats.sem(values))
    low = centre - half
    if part.name in ("alone", "ideal", "step"):  # durations
        low = max(low, 0.0)
    stated = (part.time.low or 0.0, part.time.high or 0.0)
    pairs = zip(stated, (low, centre + half), strict=True)
    return all(abs(one - other) <= tolerance for one, other in pairs)


def _steps(result: Mapping[str, Any]) -> dict[int, list[float]]:
    """Returns the mean step of each process, by round with a valid turn."""
    found, first = {}, 0
    for turn in result["turns"]:
        last = first + turn["num_steps"]
        if _is_round(turn):
            found[turn["round_index"]] = [
                statistics.fmean(rank["step_time_sec"][first:last])
                for rank in result["ranks"]
            ]
        first = last
    return found


def _is_round(turn: Mapping[str, Any]) -> bool:
    return not turn["is_void"] and not turn["is_sustained"]


def _of_controls(item: explain.Explained, raw: _Raw) -> list[Numbers]:
    """Returns the parts of a case with controls, by generation."""
    results = {
        (case.spec.control, case.spec.num_replicas > 1): raw.of(case)
        for case in item.cases
    }
    shared = set.intersection(*(set(of) for of in results.values()))
    found = []
    for key in sorted(shared):
        steps = {name: _steps(of[key]) for name, of in results.items()}
        rounds = set.intersection(*(set(of) for of in steps.values()))
        if not rounds:
            continue
        means = {
            name: [
                statistics.fmean(column)
                for column in zip(*(of[index] for index in rounds), strict=True)
            ]
            for name, of in steps.items()
        }
        found.append(_parts(means))
    return found


def _parts(ranks: Mapping[tuple[Control, bool], Sequence[float]]) -> Numbers:
    time = {name: max(of) for name, of in ranks.items()}
    step, alone = time[Control.NONE, True], time[Control.NONE, False]
    parts: Numbers = {"alone": alone}
    if (Control.SOLO, True) in ranks:
        parts["contention"] = statistics.fmean(ranks[Control.SOLO, True]) - alone
    if (Control.NOSYNC, True) in ranks:
        parts["exposed_communication"] = step - time[Control.NOSYNC, True]
        if len(ranks[Control.NOSYNC, True]) > 1:
            parts["imbalance"] = time[Control.NOSYNC, True] - min(
                ranks[Control.NOSYNC, True]
            )
    for name, control in (
        ("input", Control.SYNTHETIC),
        ("update", Control.NO_UPDATE),
    ):
        if {(control, True), (control, False)} <= time.keys():
            parts[name] = (step - alone) - (time[control, True] - time[control, False])
    return _with_rest(parts, step, alone)


def _with_rest(parts: Numbers, step: float, alone: float) -> Numbers:
    rest = step - math.fsum(value or 0.0 for value in parts.values())
    return {**parts, "unexplained": rest, "step": step, "lost": step - alone}


def _of_turns(item: recorded_loss.RecordedLoss, raw: _Raw) -> list[Numbers]:
    """Returns the parts of a case without controls, by generation."""
    here, there = raw.of(item.case), raw.of(item.baseline)
    scale = (
        item.case.spec.per_replica_batch_size
        / item.baseline.spec.per_replica_batch_size
    )
    found = []
    for key in sorted(here.keys() & there.keys()):
        both = [
            {turn["round_index"]: turn for turn in _per_core(case, of[key])}
            for case, of in ((item.case, here), (item.baseline, there))
        ]
        rounds = sorted(both[0].keys() & both[1].keys())
        if not rounds:
            continue
        sums: Numbers = {}
        for name in ("time", "computing", "core_wait", "idle"):
            case, alone = (_mean([turns[r][name] for r in rounds]) for turns in both)
            is_unknown = case is None or alone is None
            sums[name] = None if is_unknown else (case or 0.0) - scale * (alone or 0.0)
        step = _mean([both[0][r]["time"] for r in rounds])
        assert step is not None
        ideal = step - (sums.pop("time") or 0.0)
        found.append(_with_rest({"ideal": ideal, **sums}, step, ideal))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _per_core(case: Case, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what the cores did in the valid turns, in seconds per step and core."""
    steps = _steps(result)
    cores = case.spec.num_replicas * case.spec.cores_per_replica
    found = []
    for turn in result["turns"]:
        if not _is_round(turn):
            continue
        time = max(steps[turn["round_index"]])
        busy = (turn["user_sec"] + turn["system_sec"]) / (turn["num_steps"] * cores)
        of = {"round_index": turn["round_index"], "time": time, "computing": busy}
        foreign, wait = turn["foreign_cpu_fraction"], turn["run_delay_sec"]
        of["core_wait"] = of["idle"] = None
        if foreign is not None:
            rest = max(time - busy, 0.0)
            others = min((foreign + (turn["stolen_cpu_fraction"] or 0.0)) * time, rest)
            of["idle"] = rest - others
            if wait is not None:
                of["core_wait"] = min(wait / (turn["num_steps"] * cores), others)
        found.append(of)
    return found
