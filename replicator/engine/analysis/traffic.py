"""Traffic: what a step's collectives send between workers, from the plan."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from replicator.collectives.kind import Transfer
    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.placement.topology import Topology


class Sent(NamedTuple):
    """What one worker sends to others in one step."""

    num_bytes: int  # Tensors of unknown shape count nothing.
    num_tensors: int  # Each costs about a millisecond on the way.


def transfers(
    plans: Iterable[CollectivePlan], topology: Topology
) -> Iterator[Transfer]:
    """What collectives send between memories where one program has all replicas."""
    for plan in plans:
        for bucket in plan.buckets:
            for transfer in plan.collective.kind.transfers(
                bucket.num_bytes, bucket.owner, topology
            ):
                # Of what only its owner needs, nothing comes back.
                if not bucket.is_for_owner or transfer.target == bucket.owner:
                    yield transfer


def sent(
    plans: Sequence[CollectivePlan],
    topology: Topology,
    workers: Sequence[int],
    others: Iterable[Transfer] = (),
) -> dict[int, Sent]:
    """Adds up what each worker sends to others in one step."""
    sizes: dict[int, list[float]] = {worker: [] for worker in workers}
    for transfer in itertools.chain(transfers(plans, topology), others):
        source, target = workers[transfer.source], workers[transfer.target]
        if source != target:
            sizes[source].append(transfer.num_bytes)
    return {worker: Sent(round(sum(of)), len(of)) for worker, of in sizes.items()}
