"""What the weights of a model take of a device, before a study runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.models import PlannedTrial


def tables(
    trials: Sequence[PlannedTrial], device_memory: int | None
) -> dict[int, list[str]]:
    """Returns the bytes per device by level of sharding, by number of replicas.

    Of replicas with memories of their own; those on the cores of a machine share one
    copy of the variables.
    """
    if device_memory is None:
        return {}
    specs = {trial.spec.num_replicas: trial.spec for trial in trials}
    if any(spec.program for spec in specs.values()):
        raise PlanError(
            "--device-memory: a program of yours does not say what its variables are;"
            " leave it out"
        )
    return {
        num_replicas: catalog.memory_table(
            catalog.workload(spec.workload),
            spec.preset,
            spec.options,
            num_replicas=num_replicas,
            device_memory=device_memory,
        )
        for num_replicas, spec in sorted(specs.items())
    }
