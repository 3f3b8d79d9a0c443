"""How many trials a sweep has, before any is made: a plan has no end by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import PlanError
from results.limits import MAX_TRIALS
from results.records import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import BackendInfo


def num_cases(
    backends: Sequence[BackendInfo],
    replicas: Sequence[int],
    sizes: dict[ScalingMode, int],
    modes: Sequence[ScalingMode],
) -> int:
    """Counts the cases before they are made: two modes of one batch are one case."""

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
    """Refuses a sweep of too many trials.

    Raises:
      PlanError: Names how many there are, and how many there may be.
    """
    if num_trials > MAX_TRIALS:
        raise PlanError(
            f"the sweep has {num_trials} trials, and each is a process; allowed are at"
            f" most {MAX_TRIALS}: use fewer --backends, --replicas, --repeats or"
            " --quality-repeats"
        )
