"""How many replicas, or parts of them, each worker of a job runs."""

from __future__ import annotations

from typing import Any

from replicator.errors import DeviceError
from replicator.validation.arguments import shown
from replicator.validation.integers import is_integer


def per_worker(
    num_replicas: Any, num_workers: int, num_logical_devices: int = 1
) -> int:
    """Divides the replicas of a job evenly over its workers."""
    if not is_integer(num_replicas):
        raise DeviceError(f"num_replicas {shown(num_replicas)} must be an integer")
    share, remainder = divmod(num_replicas * num_logical_devices, num_workers)
    if remainder or share < 1:
        parts = (
            f" times logical_devices_per_replica {num_logical_devices}"
            if num_logical_devices != 1
            else ""
        )
        raise DeviceError(
            f"num_replicas {num_replicas} of the whole job{parts} is not divisible by "
            f"its {num_workers} workers; use a multiple, such as "
            f"{max(share, 1) * num_workers}"
        )
    return share
