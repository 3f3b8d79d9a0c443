"""Local links: a step without communication, to measure what communication costs.

Every replica computes as if all others held its own values (``of_own`` of the kind): a
mean is its operand, a sum is R times its operand, a gather is R copies of it. So values
keep their magnitude and shapes, and everything but the collectives is the same. What
replicas that share memory compute once from results is still computed once, from the
values of one of them: that includes the update of shared variables. An operand that
nothing reads is still computed, because the step ends after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.engine.graph.body import Ref
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import kernels
from replicator.engine.link.node_ops import NodeOps

if TYPE_CHECKING:
    from typing import TypeAlias

    from replicator.engine.analysis.plan import CollectivePlan
    from replicator.engine.link.bucket_links import Operand
    from replicator.placement.topology import Topology

    Tensor: TypeAlias = Ref | str


class LocalLinker:
    """Emits what stands for the collectives of a measuring control.

    Attributes:
      results: By marker name, the result on each replica.
      awaited: Nodes that the step waits for, though no result may need them.
    """

    def __init__(self, topology: Topology, prefix: str) -> None:
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self.awaited: list[str] = []
        self._emit = Emitter(kernels.supported_device)
        self._topology = topology
        self._prefix = prefix

    @property
    def nodes(self) -> list[Any]:
        """``NodeDef``s emitted so far."""
        return self._emit.nodes

    def link(self, plan: CollectivePlan, operand: Operand) -> None:
        """Emits one collective for all replicas."""
        collective = plan.collective
        places = {p: b.logical_device for b in plan.buckets for p in b.positions}
        for position, marker in enumerate(collective.markers):
            node = collective.operands[position]
            dtype, count = collective.dtypes[position], collective.num_replicas
            devices = self._topology.at(places[position]).replica_devices
            operands = [operand(replica, node) for replica in range(len(devices))]
            name = f"{self._prefix}/local_{collective.index}_{position}"
            self.results[marker] = tuple(
                collective.kind.of_own(
                    NodeOps(self._emit, f"{name}_{replica}", dtype, device),
                    ref,
                    self._topology.replica_id(replica) % count,
                    count,
                )
                for replica, (ref, device) in enumerate(
                    zip(operands, devices, strict=True)
                )
            )
            # Merged nodes read the result of one replica; all have to compute it.
            self.awaited += [ref.node for ref in operands if isinstance(ref, Ref)]
