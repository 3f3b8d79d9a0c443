"""A study as plain data, for ``--json`` and other programs."""

from __future__ import annotations

import collections
import enum
import math
from typing import TYPE_CHECKING, Any

from results.figures import frame as frame_lib
from results.study import cases as study_module
from results.study import matching

if TYPE_CHECKING:
    import pandas as pd

    from results.store.study_store import Store

REPORT_VERSION = 3


def _pick(source: object, *names: str) -> dict[str, Any]:
    """Returns attributes by name; JSON has no infinity: beyond what was measured."""
    return {name: _plain(getattr(source, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.value if isinstance(value, enum.Enum) else value


def _agreements(found: matching.Agreements) -> dict[str, Any]:
    return {
        "num_steps": found.num_steps,
        "tolerance": matching.TOLERANCE,
        "repeats_itself": found.repeats_itself,
        "pairs": [
            {
                "first": pair.first.spec.backend,
                "second": pair.second.spec.backend,
                **_pick(pair.first.spec, "num_replicas", "per_replica_batch_size"),
                "largest_relative_difference": pair.difference,
                "n": pair.num_pairs,
                "holds": pair.holds,
            }
            for pair in found.pairs
        ],
    }


def _match(match: matching.Match) -> dict[str, Any]:
    return {
        **_pick(match, "backend", "num_replicas", "outcome", "reason"),
        "global_batch_size": match.global_batch_size,
        "num_steps": matching.NUM_STEPS,
        "loss_difference": _plain(match.loss_difference),
        "loss_tolerance": matching.LOSS_TOLERANCE,
        **_pick(match, "change_difference", "change_tolerance", "changed", "remark"),
    }


def summarize(study: study_module.Study, frame: pd.DataFrame) -> dict[str, Any]:
    """Returns the figures of a study, the rows of its tidy frame, and what failed."""
    states = collections.Counter(entry.state for entry in study.planned)
    return {
        "report_version": REPORT_VERSION,
        **_pick(study.plan, "study", "baseline_num_replicas", "repeats"),
        "coverage": {"planned": len(study.planned), **dict(sorted(states.items()))},
        "figures": frame_lib.records(frame),
        "agreement": _agreements(matching.agreements_of(study)),
        "matches": [_match(match) for match in study.matches],
        "metrics": [facts.model_dump(mode="json") for facts in study.plan.metrics],
        "failures": [
            {"trial_id": entry.trial_id, "state": entry.state, "reason": entry.reason}
            for entry in study.planned
            if not entry.is_ok
        ],
        "problems": [
            {"path": problem.label, "reason": problem.reason}
            for problem in study.problems
        ],
    }


def summary(store: Store) -> dict[str, Any]:
    """Reads a study and returns its figures as plain data (JSON-able).

    Raises:
      ResultsError: The plan is missing, unreadable or contradictory.
    """
    study = study_module.load_study(store)
    return summarize(study, frame_lib.points_frame(study))
