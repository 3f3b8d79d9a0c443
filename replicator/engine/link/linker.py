"""Link: replaces the markers of collectives by the cross-replica computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.engine.analysis.plan import FLAT
from replicator.engine.graph.body import Ref
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import kernels
from replicator.engine.link.bucket_links import BucketLinks
from replicator.engine.link.chain import Chain
from replicator.engine.link.gate import Gate
from replicator.engine.link.reduction import Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from replicator.engine.analysis.plan import Bucket, CollectivePlan
    from replicator.engine.link.bucket_links import Operand
    from replicator.engine.link.cross_worker import CrossWorker
    from replicator.engine.link.uneven_rows import UnevenRows
    from replicator.placement.topology import Topology

    Tensor: TypeAlias = Ref | str


class Linker:
    """Emits the nodes of planned collectives.

    Attributes:
      results: By marker name, the result on each replica.
    """

    def __init__(
        self,
        topology: Topology,
        prefix: str,
        workers: CrossWorker | None = None,
        first_controls: Sequence[str] = (),
    ) -> None:
        """Prepares linking."""
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self._emit = Emitter(kernels.supported_device)
        self._topology = topology
        self._prefix = prefix
        self._workers = workers
        self._chain = (
            Chain(None, self._emit, first_controls)
            if workers is None
            else workers.chain
        )
        # By logical device: a gradient is reduced where it is, and nowhere else.
        self._reductions: dict[int, Reduction] = {}
        self._rows: dict[int, UnevenRows] = {}

    @property
    def nodes(self) -> list[Any]:
        """``NodeDef``s emitted so far."""
        return self._emit.nodes

    @property
    def awaited(self) -> list[str]:
        """Nodes that the step waits for, besides its outputs and effects."""
        return self._chain.ends

    def link(self, plan: CollectivePlan, operand: Operand) -> None:
        """Emits one collective for all replicas."""
        for index, bucket in enumerate(plan.buckets):
            name = f"{self._prefix}/collective_{plan.collective.index}_{index}"
            if plan.collective.needed_if is None or plan.collective.num_replicas == 1:
                self._link_bucket(plan, bucket, name, operand)
            else:
                self._link_gated(plan, bucket, name, operand)

    def _link_bucket(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        collective = plan.collective
        topology = self._topology.at(bucket.logical_device)
        if bucket.logical_device not in self._reductions:
            self._reductions[bucket.logical_device] = Reduction(
                topology, self._emit, self._workers, self._chain
            )
        links = BucketLinks(
            plan,
            bucket,
            name,
            operand,
            topology=topology,
            emit=self._emit,
            reduction=self._reductions[bucket.logical_device],
            workers=self._workers,
            rows=self._rows,
        )
        if collective.num_replicas == 1:
            results = [links.alone(collective.kind)]
        else:
            results = collective.kind.link(links)
        for position, by_replica in zip(bucket.positions, results, strict=True):
            self.results[collective.markers[position]] = by_replica

    def _link_gated(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        """Links a transfer that happens only where its condition holds."""
        collective = plan.collective
        condition = str(collective.needed_if)
        topology = self._topology.at(bucket.logical_device)
        replicas = range(topology.num_local_replicas)
        conditions = [operand(replica, condition) for replica in replicas]
        gate = Gate(f"{name}/gate", topology, conditions, self._emit)
        dtypes = dict(zip(collective.operands, collective.dtypes, strict=True))

        def gated(replica: int, node: str) -> Tensor:
            return gate.operand(replica, node, operand(replica, node), dtypes[node])

        self._link_bucket(plan, bucket, name, gated)
        for position in bucket.positions:
            marker = collective.markers[position]
            self.results[marker] = gate.results(
                self.results[marker],
                collective.dtypes[position],
                collective.shapes[position],
            )
        self._continue_after(plan, bucket)

    def _continue_after(self, plan: CollectivePlan, bucket: Bucket) -> None:
        """Lets what follows a collective run even where that does not."""
        by_replica = self.results[plan.collective.markers[bucket.positions[0]]]
        devices = self._topology.at(bucket.logical_device).replica_devices
        merged = {
            device: ref.node
            for device, ref in zip(devices, by_replica, strict=True)
            if isinstance(ref, Ref)
        }
        if plan.algorithm in FLAT:
            self._chain.continue_after_gate(merged)
        elif self._workers is not None:
            owner_memory = self._topology.memories[bucket.owner]
            self._workers.continue_after(merged[devices[owner_memory]])
