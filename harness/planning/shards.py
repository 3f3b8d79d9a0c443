"""A part of the repetitions of a sweep, for one of several machines."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from harness.errors import PlanError

if TYPE_CHECKING:
    from harness.planning.plan import PlannedSweep


def own(sweep: PlannedSweep, shard: tuple[int, int] | None) -> PlannedSweep:
    """Returns the trials of every K-th repetition, from the I-th on.

    A repetition, or generation of a relay, stays whole, so that its cases are compared
    on one machine.

    Args:
      sweep: All trials.
      shard: I, from 1, and K; None for the whole sweep.

    Raises:
      PlanError: There are fewer repetitions than shards.
    """
    if shard is None:
        return sweep
    index, count = shard
    repetitions = {trial.spec.repetition_index for trial in sweep.trials}
    if count > len(repetitions):
        raise PlanError(
            f"{count} shards of a sweep with {len(repetitions)} repetitions: some would"
            f" be empty; use at most {len(repetitions)}, or more --repeats"
        )
    chosen = {r for r in repetitions if r % count == index - 1}
    return dataclasses.replace(
        sweep,
        trials=tuple(t for t in sweep.trials if t.spec.repetition_index in chosen),
        repeats=len(chosen),
    )


def name(study: str, shard: tuple[int, int] | None) -> str:
    """Returns the name of the study of a shard, or of the whole sweep."""
    if shard is None:
        return study
    index, count = shard
    return f"{study}-shard-{index}-of-{count}"
