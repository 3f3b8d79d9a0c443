"""Compares the verdict of a gate with the same verdict from raw trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from results.judging import look
from results.records.models import Control, Order
from results.verify import gates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from results.study.cases import Study
    from results.verify.check import Check
    from results.verify.raw_trial import RawTrial

    _Case = tuple[str, int, int]
    _Side = dict[Any, Any]

TOLERANCE: Final = 1e-6
"""Levels come from a grid."""
_OF_RANKS: Final[Mapping[str, tuple[str, Callable[[list[float]], float]]]] = {
    "peak_memory": ("peak_memory_bytes", sum),
    "time_to_first_step": ("time_to_first_step_sec", max),
}


def compare(study: Study, raws: Mapping[str, RawTrial], check: Check) -> None:
    """Compares the verdict of a gate of two revisions, on what no package added."""
    found = look.of_plan(study)
    design = study.plan.measuring.gate
    if found is None or design is None or found.paired is None:
        return
    is_relay = study.plan.measuring.order is Order.RELAY
    of_turns = ("throughput", "efficiency") if is_relay else ()
    if design.metric not in (*_OF_RANKS, *of_turns):
        return
    try:
        sides, modes = _raw_sides(study, raws)
    except LookupError as error:
        check.lack("verdict", f"trials/{error.args[0]}: no raw turns")
        return
    if not any(side for pair in sides.values() for side in pair):
        return  # it was stopped before any trial was ok
    logs = gates.log_slowdowns(list(sides.values()))
    if design.metric in _OF_RANKS:
        logs = gates.of_ranks(list(sides.values()), *_OF_RANKS[design.metric])
    elif design.metric == "efficiency":
        logs = gates.of_efficiency(logs, [(*key[:2], modes[key]) for key in sides])
    again = gates.judge(
        logs,
        planned=design.looks,
        delta=design.delta,
        alpha=design.alpha,
    )
    ended = found.paired.decided_after or found.paired.looks[-1]
    check.compare("verdict", "gate: generations", ended, again.after)
    for case, stated in zip(again.cases, found.cases, strict=True):
        judgement = stated.judgement
        if judgement is None:
            continue
        slowdown, where = judgement.slowdown, f"gate: {stated.name}"
        verdict, *numbers = case
        check.compare("verdict", where, judgement.verdict.value, verdict)
        told = (slowdown.value, slowdown.low, slowdown.high)
        for one, other in zip(told, numbers, strict=True):
            check.compare("verdict", where, one, other, tolerance=TOLERANCE)


def _raw_sides(
    study: Study, raws: Mapping[str, RawTrial]
) -> tuple[dict[_Case, tuple[_Side, _Side]], dict[_Case, set[str]]]:
    """Returns the raw results of both sides of each case, and its modes."""
    sides: dict[_Case, tuple[_Side, _Side]] = {}
    modes: dict[_Case, set[str]] = {}
    for entry in study.planned:
        spec = entry.spec
        if spec.control is not Control.NONE or spec.budget is not None:
            continue
        key = spec.backend, spec.num_replicas, spec.per_replica_batch_size
        pair = sides.setdefault(key, ({}, {}))
        modes.setdefault(key, set()).update(mode.value for mode in entry.modes)
        if not entry.is_ok:
            continue
        if entry.trial_id not in raws:
            raise LookupError(entry.trial_id)
        result = dict(raws[entry.trial_id].result)
        result["turns"] = [
            turn
            if turn["is_void"] is not None
            else {**turn, "is_void": bool(entry.result.turns[n].void_reason)}
            for n, turn in enumerate(result["turns"])
        ]
        pair[bool(spec.revision)][spec.repetition_index, spec.seed] = result
    return sides, modes
