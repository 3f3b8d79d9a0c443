"""Splits a global batch evenly over replicas, or raises an error."""

from __future__ import annotations

from harness.errors import PlanError
from results.records.limits import MAX_REPLICAS


def divide(global_batch_size: int, num_replicas: int) -> int:
    """Returns the examples per replica and step.

    Raises:
      PlanError: The batch is not divisible; the message has both numbers and the
        nearest values that are.
    """
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


def _nearest_divisors(global_batch_size: int, num_replicas: int) -> str:
    # Allowed counts, nearest first, whatever the global batch is.
    below = range(min(num_replicas - 1, global_batch_size), 0, -1)
    above = range(num_replicas + 1, min(global_batch_size, MAX_REPLICAS) + 1)
    nearest = [
        next((count for count in counts if global_batch_size % count == 0), None)
        for counts in (below, above)
    ]
    return " or ".join(str(count) for count in nearest if count is not None)
