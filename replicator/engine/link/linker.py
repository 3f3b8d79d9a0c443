"""Link: replaces the markers of collectives by the cross-replica computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.analysis.plan import FLAT
from replicator.engine.graph.body import Ref
from replicator.engine.graph.emitter import Emitter
from replicator.engine.link import kernels
from replicator.engine.link.chain import Chain
from replicator.engine.link.gate import Gate
from replicator.engine.link.reduction import Reduction
from replicator.engine.link.uneven_rows import UnevenRows
from replicator.placement.worker_group import flat_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine.analysis.plan import Bucket, CollectivePlan
    from replicator.engine.graph.trace import Collective
    from replicator.engine.link.cross_worker import CrossWorker
    from replicator.placement.topology import Topology

    # (replica_id, operand node) -> the operand on that replica
    Tensor = Ref | str  # a node's output, or a function argument
    Operand = Callable[[int, str], Tensor]


class Linker:
    """Emits the nodes of planned collectives.

    Attributes:
      results: By marker name, the result on each replica.
      awaited: Nodes that the step waits for besides its outputs and effects: none.
    """

    awaited: Sequence[str] = ()

    def __init__(
        self,
        topology: Topology,
        prefix: str,
        workers: CrossWorker | None = None,
        first_controls: Sequence[str] = (),
    ) -> None:
        """Prepares linking.

        Args:
          topology: Where the replicas of this program are.
          prefix: What names of nodes begin with.
          workers: Communication with other workers; None if there are none.
          first_controls: Without workers, what the first collective between GPUs waits
            for: batches, so that no replica has begun to communicate when data ends.
        """
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self._emit = Emitter(kernels.supported_device)
        self._topology = topology
        self._devices = topology.replica_devices
        self._prefix = prefix
        self._workers = workers
        flat = flat_group(topology, None) if topology.has_own_gpus else None
        self._chain = (
            Chain(None, self._emit, first_controls, flat)
            if workers is None
            else workers.chain
        )
        self._reduction = Reduction(topology, self._emit, workers, self._chain)
        self._rows: dict[int, UnevenRows] = {}

    @property
    def nodes(self) -> list[Any]:
        """``NodeDef``s emitted so far."""
        return self._emit.nodes

    def link(self, plan: CollectivePlan, operand: Operand) -> None:
        """Emits one collective for all replicas."""
        for index, bucket in enumerate(plan.buckets):
            name = f"{self._prefix}/collective_{plan.collective.index}_{index}"
            if plan.collective.needed_if is None or plan.algorithm == "wire":
                self._link_bucket(plan, bucket, name, operand)
            else:
                self._link_gated(plan, bucket, name, operand)

    def _link_bucket(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        if len(bucket.positions) > 1:
            self._link_fused(plan, bucket, name, operand)
            return
        (position,) = bucket.positions
        link = {
            "wire": self._broadcast,
            "pack": self._gather,
            "rows": self._gather if plan.collective.op == "" else self._reduce,
            "concat": self._join,
        }.get(plan.algorithm, self._reduce)
        operands = self._operands(plan.collective, position, operand)
        results = link(plan, bucket, name, operands)
        self.results[plan.collective.markers[position]] = results

    def _operands(
        self, collective: Collective, position: int, operand: Operand
    ) -> list[Tensor]:
        node = collective.operands[position]
        return [operand(replica, node) for replica in range(len(self._devices))]

    def _tensor(
        self, plan: CollectivePlan, bucket: Bucket
    ) -> tuple[tf.DType, tf.TensorShape, str]:
        """Type, shape and owner's device of a bucket's first tensor."""
        collective, position = plan.collective, bucket.positions[0]
        device = self._devices[bucket.owner]
        return collective.dtypes[position], collective.shapes[position], device

    def _link_gated(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        """Links a transfer that happens only where its condition holds."""
        collective = plan.collective
        condition = str(collective.needed_if)
        conditions = [operand(r, condition) for r in range(len(self._devices))]
        gate = Gate(f"{name}/gate", self._topology, conditions, self._emit)
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
        merged = {
            device: ref.node
            for device, ref in zip(self._devices, by_replica, strict=True)
            if isinstance(ref, Ref)
        }
        if plan.algorithm in FLAT:
            self._chain.continue_after_on(merged)
        elif self._workers is not None:
            owner_memory = self._topology.memories[bucket.owner]
            self._workers.continue_after(merged[self._devices[owner_memory]])

    def _broadcast(
        self,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operands: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Finds the source among this program's replicas, or receives it."""
        collective, position = plan.collective, bucket.positions[0]
        if self._workers is None:
            return (operands[collective.source_replica_id],) * len(operands)
        program_id, local = divmod(collective.source_replica_id, len(operands))
        dtype, shape = collective.dtypes[position], collective.shapes[position]
        device = self._devices[local]
        self._check_shape(shape, name, operands[local], dtype, device)
        sent = self._workers.broadcast(
            name, operands[local], dtype, shape, program_id, device
        )
        return (sent,) * len(operands)

    def _gather(
        self,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operands: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Stacks the replicas' tensors, and those of all workers."""
        dtype, shape, device = self._tensor(plan, bucket)
        if plan.algorithm == "rows":
            rows = self._reduction.gather_rows(name, operands, dtype, shape)
            return self._distribute(rows)
        attrs = {"N": len(operands), "T": dtype, "axis": 0}
        packed: Tensor = self._emit.add(
            f"{name}/pack", "Pack", operands, device, "output:0", attrs
        )
        if self._workers is not None:
            shape = tf.TensorShape([len(operands)]).concatenate(shape)
            self._check_shape(shape, name, packed, dtype, device)
            packed = self._workers.gather(name, packed, dtype, shape, device)
        return (packed,) * len(operands)

    def _join(
        self,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operands: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Joins the replicas' rows, and those of all workers."""
        dtype, shape, device = self._tensor(plan, bucket)
        joined = operands[0]
        if len(operands) > 1:
            joined = self._emit.concat(f"{name}/rows", operands, dtype, device)
        if self._workers is not None:
            index = plan.collective.index
            rows = self._rows.setdefault(index, UnevenRows(self._workers))
            joined = rows.gather(name, joined, dtype, shape, len(operands), device)
        return (joined,) * len(operands)

    def _reduce(
        self,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operands: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Reduces one tensor."""
        collective, position = plan.collective, bucket.positions[0]
        dtype, shape = collective.dtypes[position], collective.shapes[position]
        partials = self._reduction.within_memories(
            collective.op, f"{name}/local", operands, dtype
        )
        device = self._devices[self._reduction.memories[0]]
        self._check_shape(shape, name, partials[0], dtype, device)
        return self._distribute(
            self._reduction.between_memories(
                plan, bucket.owner, name, partials, dtype, shape
            )
        )

    def _check_shape(
        self, shape: Any, name: str, ref: Tensor, dtype: tf.DType, device: str
    ) -> None:
        """Compares shapes over workers where the trace does not know them."""
        if self._workers is not None and not shape.is_fully_defined():
            self._workers.check_shape(f"{name}/check", ref, dtype, device)

    def _link_fused(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        """Links a reduction of several tensors that are sent as one."""
        collective, memories = plan.collective, self._reduction.memories
        dtype = collective.dtypes[bucket.positions[0]]
        shapes = [collective.shapes[p].as_list() for p in bucket.positions]
        partials = [
            self._reduction.within_memories(
                collective.op,
                f"{name}/local_{position}",
                self._operands(collective, position, operand),
                dtype,
            )
            for position in bucket.positions
        ]
        # One row of ``partials`` per tensor, one vector per memory.
        packed = [
            self._emit.pack(f"{name}/bucket_{m}", of_memory, dtype, self._devices[m])
            for m, of_memory in zip(memories, zip(*partials, strict=True), strict=True)
        ]
        size = sum(int(collective.shapes[p].num_elements()) for p in bucket.positions)
        combined = self._reduction.between_memories(
            plan, bucket.owner, name, packed, dtype, tf.TensorShape([size])
        )
        # Each memory unpacks its own copy, so that one transfer moves the bucket.
        unpacked = [
            self._emit.unpack(
                f"{name}/unpack_{m}", ref, shapes, dtype, self._devices[m]
            )
            for m, ref in zip(memories, combined, strict=True)
        ]
        for position, parts in zip(
            bucket.positions, zip(*unpacked, strict=True), strict=True
        ):
            self.results[collective.markers[position]] = self._distribute(parts)

    def _distribute(self, by_memory: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gives every replica the result of its memory."""
        of_memory = dict(zip(self._reduction.memories, by_memory, strict=True))
        return tuple(of_memory[memory] for memory in self._topology.memories)
