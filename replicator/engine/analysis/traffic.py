"""Traffic: the bytes that a step's collectives send between workers, from the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.engine.analysis.plan import Bucket, CollectivePlan
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
    sent = dict.fromkeys(workers, 0)
    # A value is sent once to each memory, not to each replica.
    memories = tuple(dict.fromkeys(topology.memories))
    for plan in plans:
        for bucket in plan.buckets:
            for source, target in _transfers(plan, bucket, topology, memories):
                if workers[source] != workers[target]:
                    sent[workers[source]] += bucket.num_bytes
    return sent


def _transfers(
    plan: CollectivePlan,
    bucket: Bucket,
    topology: Topology,
    memories: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Replicas between which one bucket's bytes go, as (from, to)."""
    if plan.algorithm == "wire":
        source = plan.collective.source_replica_id
        yield from ((source, memory) for memory in memories)
    elif plan.algorithm in ("pack", "concat"):
        replicas = range(topology.num_local_replicas)
        yield from ((replica, bucket.owner) for replica in replicas)
        # What comes back is one slice per replica.
        for memory in memories:
            yield from ((bucket.owner, memory) for _ in replicas)
    else:
        for memory in memories:
            yield memory, bucket.owner
            yield bucket.owner, memory
