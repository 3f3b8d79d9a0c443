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

from results.figures import lost_time
from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from results.figures.lost_time import LostTime
    from results.records.models import TrialResult
    from results.study.cases import Case, Entry, Study

    # round -> mean seconds per step of each process
    Rounds = Mapping[int, tuple[float, ...]]

NO_COMMON_ROUND = (
    "no round of any generation has a valid turn of the case and of all its controls"
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
