"""Splits a global batch evenly over replicas, or raises an error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.errors import PlanError
from results.records.limits import MAX_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.catalog import WorkloadInfo


def divide(global_batch_size: int, num_replicas: int) -> int:
    """Returns the examples per replica and step."""
    per_replica, rest = divmod(global_batch_size, num_replicas)
    if rest == 0:
        return per_replica
    below = per_replica * num_replicas
    above = below + num_replicas
    sizes = f"{below} or {above}" if below else f"{above}"
    counts = _nearest_divisors(global_batch_size, num_replicas)
    raise PlanError(
        f"strong scaling: global batch {global_batch_size} is not divisible by"
        f" {num_replicas} replicas (remainder {rest}); use"
        f" --global-batch-size {sizes}, or {counts} replicas"
    )


def check_unit(
    info: WorkloadInfo, units: Mapping[str, int], per_replica: int, num_replicas: int
) -> None:
    """Checks that a batch is a multiple of what the workload reads at once."""
    unit = math.prod(units.values())
    if per_replica % unit:
        product = " times ".join(f"{name} {size}" for name, size in units.items())
        options = ", ".join(f"--option {name}=N" for name in units)
        below = per_replica // unit * unit
        sizes = f"{below} or {below + unit}" if below else f"{unit}"
        raise PlanError(
            f"{num_replicas} replica(s) of {per_replica} {info.example_unit} each:"
            f" a batch of {info.name} is a multiple of {product}; use"
            f" {sizes} {info.example_unit} per replica (--per-replica-batch-size, or"
            f" --global-batch-size {below * num_replicas or unit * num_replicas} with"
            f" strong scaling), or another {options}"
        )


def _nearest_divisors(global_batch_size: int, num_replicas: int) -> str:
    # Allowed counts, nearest first, whatever the global batch is.
    below = range(min(num_replicas - 1, global_batch_size), 0, -1)
    above = range(num_replicas + 1, min(global_batch_size, MAX_REPLICAS) + 1)
    nearest = [
        next((count for count in counts if global_batch_size % count == 0), None)
        for counts in (below, above)
    ]
    return " or ".join(str(count) for count in nearest if count is not None)
