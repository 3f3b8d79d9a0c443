"""Recomputes from raw observations whether N replicas match one, by another path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from results.study import matching
from results.study.matching import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.study.cases import Study
    from results.verify.check import Check
    from results.verify.raw_trial import RawTrial

_KIND = "matches"
_TOLERANCE = 1e-9


def compare(study: Study, raws: Mapping[str, RawTrial], check: Check) -> None:
    """Compares every match with the raw observations of its two trials."""
    planned = () if study.plan.matching is None else study.plan.matching.trials
    for match in study.matches:
        if match.outcome is Outcome.NOT_CHECKED:
            continue
        same_size = [
            trial
            for trial in planned
            if trial.spec.global_batch_size == match.global_batch_size
        ]
        reference = next(t for t in same_size if t.spec.num_devices == 1)
        trial = next(
            t
            for t in same_size
            if t.spec.num_devices > 1
            and t.spec.backend == match.backend
            and t.spec.num_replicas == match.num_replicas
        )
        if trial.trial_id not in raws or reference.trial_id not in raws:
            check.lack(_KIND, f"{match.label}: no rank_0.jsonl of a trial that matches")
            continue
        sides = [raws[side.trial_id].result for side in (trial, reference)]
        is_client = trial.spec.is_client
        try:
            of_losses, of_change, is_match = _derive(*sides, is_client=is_client)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            malformed = f"a line is malformed: {type(error).__name__}: {error}"
            check.differ(_KIND, match.label, "its raw observations", malformed)
            continue
        for name, stated, derived in (
            ("loss_difference", match.loss_difference, of_losses),
            ("change_difference", match.change_difference, of_change),
        )[: 1 if is_client else 2]:
            check.compare(
                _KIND, f"{match.label} {name}", stated, derived, tolerance=_TOLERANCE
            )
        check.compare(
            _KIND,
            f"{match.label} outcome",
            stated=match.outcome is Outcome.MATCHES,
            derived=is_match,
        )


def _derive(*sides: Mapping[str, Any], is_client: bool) -> tuple[float, float, bool]:
    """Returns by how much losses and changes differ, and whether that is a match."""
    of_losses, of_changes = _losses(*sides), _changes(*sides)
    is_match = (is_client or bool(of_changes)) and (
        of_losses <= matching.LOSS_TOLERANCE
        and all(
            value <= matching.TOLERANCES[group]
            for (group, _), value in of_changes.items()
        )
    )
    of_change = max(
        (value / matching.TOLERANCES[group], value)
        for (group, _), value in (of_changes or {("model", ""): float("inf")}).items()
    )[1]
    return of_losses, of_change, is_match


def _losses(*sides: Mapping[str, Any]) -> float:
    first, second = (
        np.array([rank["losses"][: matching.NUM_STEPS] for rank in side["ranks"]]).mean(
            axis=0
        )
        for side in sides
    )
    if min(first.size, second.size) < matching.NUM_STEPS:
        return float("inf")
    scale = np.maximum(np.maximum(abs(first), abs(second)), 1e-30)
    return float(np.max(abs(first - second) / scale))


def _changes(*sides: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    first, second = (
        {(c["group"], c["name"]): np.array(c["sketch"]) for c in side["changes"]}
        for side in sides
    )
    found = {}
    for key in first.keys() | second.keys():
        one, other = first.get(key, np.zeros(0)), second.get(key, np.zeros(0))
        if one.size != other.size:
            found[key] = float("inf")
            continue
        norm = max(np.linalg.norm(one), np.linalg.norm(other))
        found[key] = float(np.linalg.norm(one - other) / norm) if norm else 0.0
    return found
