"""Counts the trials of a sweep before it is planned, and limits their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import PlanError
from results.records.limits import MAX_TRIALS
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import BackendInfo


def num_cases(
    backends: Sequence[BackendInfo],
    replicas: Sequence[int],
    sizes: dict[ScalingMode, int],
    modes: Sequence[ScalingMode],
) -> int:
    """Counts the cases before they are created; two modes of one batch are one case."""

    def count(num_replicas: int) -> int:
        weak = sizes[ScalingMode.WEAK] * num_replicas
        return 1 if weak == sizes[ScalingMode.STRONG] else len(modes)

    counts = [(num_replicas, count(num_replicas)) for num_replicas in replicas]
    return sum(
        number
        for backend in backends
        for num_replicas, number in counts
        if num_replicas <= (backend.max_replicas or num_replicas)
    )


def check(num_trials: int) -> None:
    """Checks that a sweep has not too many trials."""
    if num_trials > MAX_TRIALS:
        raise PlanError(
            f"the sweep has {num_trials} trials, and each is a process; allowed are at"
            f" most {MAX_TRIALS}: use fewer --backends, --replicas, --repeats or"
            " --quality-repeats"
        )
