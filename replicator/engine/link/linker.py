"""Link: replaces the markers of collectives by the cross-replica computation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.analysis.plan import FLAT
from replicator.engine.graph.body import Emitter, Ref
from replicator.engine.link import fragments, reduction
from replicator.engine.link.chain import Chain, Gate
from replicator.engine.link.cross_worker import CrossWorker, UnevenRows
from replicator.engine.link.reduction import PAIRWISE, How, NodeOps, Reduction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.collectives.kind import CollectiveKind
    from replicator.core.topology import Topology
    from replicator.engine.analysis.plan import Bucket, CollectivePlan
    from replicator.engine.graph.body import Tensor

    Operand = Callable[[int, str], Tensor]


# See ``collectives/kind.py``. Kinds say what is joined; here are the ways of this
# program: the memories of its replicas, buckets, and the other workers.


@dataclasses.dataclass(kw_only=True)
class BucketLinks:
    """What a kind makes its collective of: one bucket of a plan.

    Results are by replica of this program. Every program must use what it gathers, for
    any of its replicas: what nobody uses is not run, and others would wait forever.
    """

    plan: CollectivePlan
    bucket: Bucket
    name: str
    operand: Operand
    topology: Topology
    emit: Emitter
    reduction: Reduction
    workers: CrossWorker | None
    rows: dict[int, UnevenRows]

    def __post_init__(self) -> None:
        self._devices = self.topology.replica_devices
        call, position = self.plan.collective, self.bucket.positions[0]
        self._dtype, self._shape = call.dtypes[position], call.shapes[position]
        self._by_position: dict[int, list[Tensor]] = {}
        self.num_replicas = call.num_replicas
        self.first_replica_id = self.topology.first_replica_id
        self.num_workers = 1 if self.workers is None else self.workers.num_workers
        self._ops = [
            NodeOps(self.emit, f"{self.name}/on_{replica}", self._dtype, device)
            for replica, device in enumerate(self._devices)
        ]

    @property
    def operands(self) -> Sequence[Tensor]:
        """By replica of this program, the operand, if it is a single tensor."""
        return self._operands(self.bucket.positions[0])

    def ops(self, replica: int) -> NodeOps:
        """Emits nodes on the device of a replica of this program."""
        return self._ops[replica]

    def alone(self, kind: CollectiveKind) -> tuple[Tensor, ...]:
        """The result of the only replica."""
        ops = NodeOps(self.emit, self.name, self._dtype, self._owner_device)
        return (kind.local_result(ops, self.operands[0], 0, 1),)

    def partials(self, op: str) -> list[tuple[int, Tensor]]:
        """Reduces within memories: a replica and a tensor on its device, for each."""
        within = self._within_memories(op, f"{self.name}/local", self.operands)
        memories = self.reduction.memories
        places = memories if len(within) == len(memories) else range(len(within))
        return list(zip(places, within, strict=True))

    def reduced(self, op: str, wire_dtype: tf.DType | None) -> list[tuple[Tensor, ...]]:
        """Reduces each tensor of the bucket over all replicas of the job."""
        how = How(
            op=op,
            wire_dtype=wire_dtype,
            algorithm=self.plan.algorithm,
            num_replicas=self.num_replicas,
            owner=self.bucket.owner,
        )
        if len(self.bucket.positions) > 1:
            return self._reduce_fused(how)
        partials = self._within_memories(op, f"{self.name}/local", self.operands)
        device = self._devices[self.reduction.memories[0]]
        self._check_shape(partials[0], device)
        results = self.reduction.between_memories(
            how, self.name, partials, self._dtype, self._shape
        )
        return [self._distribute(results)]

    def _reduce_fused(self, how: How) -> list[tuple[Tensor, ...]]:
        """Reduces several tensors that are sent as one."""
        call, memories, dtype = (
            self.plan.collective,
            self.reduction.memories,
            self._dtype,
        )
        positions, name = self.bucket.positions, self.name
        shapes = [call.shapes[p].as_list() for p in positions]
        partials = [
            self._within_memories(
                how.op, f"{name}/local_{position}", self._operands(position)
            )
            for position in positions
        ]
        # One row of ``partials`` per tensor, one vector per memory.
        packed = [
            self.emit.pack(
                f"{name}/bucket_{m}", of_memory, shapes, dtype, self._devices[m]
            )
            for m, of_memory in zip(memories, zip(*partials, strict=True), strict=True)
        ]
        size = sum(int(call.shapes[p].num_elements()) for p in positions)
        combined = self.reduction.between_memories(
            how, name, packed, dtype, tf.TensorShape([size])
        )
        # Each memory unpacks its own copy, so that one transfer moves the bucket.
        unpacked = [
            self.emit.unpack(f"{name}/unpack_{m}", ref, shapes, dtype, self._devices[m])
            for m, ref in zip(memories, combined, strict=True)
        ]
        return [self._distribute(parts) for parts in zip(*unpacked, strict=True)]

    def stacked(self) -> tuple[Tensor, ...]:
        """Stacks the replicas' tensors, and those of all workers."""
        device = self._owner_device
        ops = NodeOps(self.emit, f"{self.name}/pack", self._dtype, device)
        packed = ops.stack(self.operands)
        if self.workers is not None:
            count = len(self.operands)
            shape = tf.TensorShape([count]).concatenate(self._shape)
            self._check_shape(packed, device)
            packed = self.workers.gather(self.name, packed, self._dtype, shape, device)
        return (packed,) * len(self.operands)

    def joined(self) -> tuple[Tensor, ...]:
        """Joins the replicas' rows, and those of all workers."""
        device = self._owner_device
        count = len(self.operands)
        joined = NodeOps(self.emit, f"{self.name}/rows", self._dtype, device).concat(
            self.operands
        )
        if self.workers is not None:
            index = self.plan.collective.index
            rows = self.rows.setdefault(index, UnevenRows(self.workers))
            joined = rows.gather(
                self.name, joined, self._dtype, self._shape, count, device
            )
        return (joined,) * count

    def received_from(self, replica_id: int) -> tuple[Tensor, ...]:
        """Finds the operand of a replica in this program, or receives it."""
        count = len(self.operands)
        if self.workers is None:
            return (self.operands[replica_id],) * count
        program_id, local = divmod(replica_id, count)
        device = self._devices[local]
        self._check_shape(self.operands[local], device)
        sent = self.workers.broadcast(
            self.name,
            self.operands[local],
            self._dtype,
            self._shape,
            program_id,
            device,
        )
        return (sent,) * count

    @property
    def _owner_device(self) -> str:
        return self._devices[self.bucket.owner]

    def _operands(self, position: int) -> list[Tensor]:
        # Found once: what is behind a gate is emitted when it is asked for.
        if position not in self._by_position:
            node = self.plan.collective.operands[position]
            replicas = range(len(self._devices))
            self._by_position[position] = [self.operand(r, node) for r in replicas]
        return self._by_position[position]

    def _within_memories(
        self, op: str, name: str, operands: Sequence[Tensor]
    ) -> list[Tensor]:
        # Of the reductions only these ops broadcast: [1] and [3] would become [3].
        may_broadcast = op in PAIRWISE and not self._shape.is_fully_defined()
        if may_broadcast and len(operands) > 1:
            (first,), _ = fragments.inline(
                self.emit,
                f"{name}/check",
                fragments.check_alike,
                [(operand, self._dtype) for operand in operands],
                self._devices[0],
                what=str(self.plan.collective.kind),
                devices=tuple(self._devices),
            )
            operands = [first, *operands[1:]]
        return self.reduction.within_memories(op, name, operands, self._dtype)

    def _check_shape(self, ref: Tensor, device: str) -> None:
        """Compares shapes over workers where the trace does not know them."""
        if self.workers is not None and not self._shape.is_fully_defined():
            name = f"{self.name}/check"
            self.workers.check_shape(name, ref, self._dtype, device)

    def _distribute(self, by_memory: Sequence[Any]) -> tuple[Tensor, ...]:
        """Gives every replica the result of its memory."""
        of_memory = dict(zip(self.reduction.memories, by_memory, strict=True))
        return tuple(of_memory[memory] for memory in self.topology.memories)


class Linker:
    """Emits the nodes of planned collectives."""

    def __init__(
        self,
        topology: Topology,
        prefix: str,
        workers: CrossWorker | None = None,
        first_controls: Sequence[str] = (),
    ) -> None:
        # By marker name, the result on each replica.
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self._emit = Emitter(reduction.supported_device)
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
            plan=plan,
            bucket=bucket,
            name=name,
            operand=operand,
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
            self._workers.chain.continue_after(merged[devices[owner_memory]])


# Every replica computes as if all others held its own values (``local_result`` of the
# kind): a mean is its operand, a sum is R times its operand, a gather is R copies of
# it. So values keep their magnitude and shapes, and everything but the collectives is
# the same. What replicas that share memory compute once from results is still computed
# once, from the values of one of them: that includes the update of shared variables. An
# operand that nothing reads is still computed, because the step ends after it.


class LocalLinker:
    """Emits what stands for the collectives of a measuring control."""

    def __init__(self, topology: Topology, prefix: str) -> None:
        # By marker name, the result on each replica.
        self.results: dict[str, tuple[Tensor, ...]] = {}
        # Nodes that the step waits for, though no result may need them.
        self.awaited: list[str] = []
        self._emit = Emitter(reduction.supported_device)
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
                collective.kind.local_result(
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
