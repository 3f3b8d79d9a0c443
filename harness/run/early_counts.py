"""Counts of both sides of a gate, once its programs have been built: before any turn.

What differs in them is exact, so a reader need not wait for the generations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.trial import rank_file
from results.judging import exact
from results.records import measuring
from results.records.models import Control

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from harness.run.resident import Resident
    from results.records.models import TrialSpec


def differences(residents: Iterable[Resident]) -> Iterator[str]:
    """Yields what differs in a step of a case, one line each; nothing of a sweep."""
    alive = [
        resident
        for resident in residents
        if resident.is_alive and resident.prepared.trial.spec.control is Control.NONE
    ]
    stored = {
        _key(resident.prepared.trial.spec): resident
        for resident in alive
        if resident.prepared.trial.spec.revision
    }
    for resident in alive:
        spec = resident.prepared.trial.spec
        other = None if spec.revision else stored.get(_key(spec))
        if other is None:
            continue
        before = _read(other)
        for name, after in _read(resident).items():
            sides = before.get(name, after), after
            if sides[0] != after:
                yield (
                    f"{spec.backend} x{spec.num_replicas}:"
                    f" {measuring.step_count_words(name)}"
                    f" {exact.share_text(*sides)} ({exact.exact_text(*sides)})"
                )


def _key(spec: TrialSpec) -> tuple[str, int, int]:
    """What a case is, whatever its revision."""
    return spec.backend, spec.num_replicas, spec.per_replica_batch_size


def _read(resident: Resident) -> dict[str, float]:
    """Returns what the first process of a trial has counted of a step."""
    log = rank_file.read_rank(resident.prepared.trial_dir, 0)
    return {
        metric["name"]: metric["value"]
        for metric in log.window_metrics
        if metric["name"] in measuring.UNITS
    }
