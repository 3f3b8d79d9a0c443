"""Traffic: the bytes that a step's collectives send between workers, from the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.placement.topology import Topology


def sent_bytes(
    plans: Sequence[CollectivePlan], topology: Topology, workers: Sequence[int]
) -> dict[int, int]:
    """Adds up what each worker sends to others in one step.

    Args:
      plans: Of all collectives of the step.
      topology: Where the replicas are.
      workers: By replica, the worker that hosts it.

    Returns:
      Bytes by worker; tensors of unknown shape count nothing.
    """
    sent = dict.fromkeys(workers, 0.0)
    for plan in plans:
        for bucket in plan.buckets:
            for transfer in plan.collective.kind.transfers(
                bucket.num_bytes, bucket.owner, topology
            ):
                if bucket.is_for_owner and transfer.target != bucket.owner:
                    continue  # nothing comes back
                source, target = workers[transfer.source], workers[transfer.target]
                if source != target:
                    sent[source] += transfer.num_bytes
    return {worker: round(num_bytes) for worker, num_bytes in sent.items()}
