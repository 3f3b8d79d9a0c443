"""Links of one bucket: how the linker carries out what a kind requests.

See ``collectives/linking.py``. Kinds say what is joined; here are the ways of this
program: the memories of its replicas, buckets, and the other workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.link import shape_check
from replicator.engine.link.node_ops import PAIRWISE, NodeOps
from replicator.engine.link.reduction import How
from replicator.engine.link.uneven_rows import UnevenRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from replicator.collectives.kind import CollectiveKind
    from replicator.engine.analysis.plan import Bucket, CollectivePlan
    from replicator.engine.graph.body import Ref
    from replicator.engine.graph.emitter import Emitter
    from replicator.engine.link.cross_worker import CrossWorker
    from replicator.engine.link.reduction import Reduction
    from replicator.placement.topology import Topology

    Tensor: TypeAlias = Ref | str
    # (replica, operand node) -> the operand on that replica
    Operand = Callable[[int, str], Tensor]


class BucketLinks:
    """``collectives.linking.Links`` of one bucket of a plan.

    Attributes:
      num_replicas: Replicas of the job.
      first_replica_id: Id in the job of this program's first replica.
      num_workers: Programs that run side by side; 1 if this one has all replicas.
    """

    def __init__(
        self,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operand: Operand,
        *,
        topology: Topology,
        emit: Emitter,
        reduction: Reduction,
        workers: CrossWorker | None,
        rows: dict[int, UnevenRows],
    ) -> None:
        """Finds the operands."""
        self._plan = plan
        self._bucket = bucket
        self._name = name
        self._operand = operand
        self._topology = topology
        self._devices = topology.replica_devices
        self._emit = emit
        self._reduction = reduction
        self._workers = workers
        self._rows = rows
        call, position = plan.collective, bucket.positions[0]
        self._dtype, self._shape = call.dtypes[position], call.shapes[position]
        self._by_position: dict[int, list[Tensor]] = {}
        self.num_replicas = call.num_replicas
        self.first_replica_id = topology.first_replica_id
        self.num_workers = 1 if workers is None else workers.num_workers
        self._ops = [
            NodeOps(emit, f"{name}/on_{replica}", self._dtype, device)
            for replica, device in enumerate(self._devices)
        ]

    @property
    def operands(self) -> Sequence[Tensor]:
        """By replica of this program, the operand, if it is a single tensor."""
        return self._operands(self._bucket.positions[0])

    def ops(self, replica: int) -> NodeOps:
        """Emits nodes on the device of a replica of this program."""
        return self._ops[replica]

    def alone(self, kind: CollectiveKind) -> tuple[Tensor, ...]:
        """The result of the only replica."""
        ops = NodeOps(self._emit, self._name, self._dtype, self._owner_device)
        return (kind.of_own(ops, self.operands[0], 0, 1),)

    def partials(self, op: str) -> list[tuple[int, Tensor]]:
        """Reduces within memories: a replica and a tensor on its device, for each."""
        within = self._within_memories(op, f"{self._name}/local", self.operands)
        memories = self._reduction.memories
        places = memories if len(within) == len(memories) else range(len(within))
        return list(zip(places, within, strict=True))

    def reduced(self, op: str, wire_dtype: tf.DType | None) -> list[tuple[Tensor, ...]]:
        """Reduces each tensor of the bucket over all replicas of the job."""
        how = How(
            op=op,
            wire_dtype=wire_dtype,
            algorithm=self._plan.algorithm,
            num_replicas=self.num_replicas,
            owner=self._bucket.owner,
        )
        if len(self._bucket.positions) > 1:
            return self._reduce_fused(how)
        partials = self._within_memories(op, f"{self._name}/local", self.operands)
        device = self._devices[self._reduction.memories[0]]
        self._check_shape(partials[0], device)
        results = self._reduction.between_memories(
            how, self._name, partials, self._dtype, self._shape
        )
        return [self._distribute(results)]

    def _reduce_fused(self, how: How) -> list[tuple[Tensor, ...]]:
        """Reduces several tensors that are sent as one."""
        call, memories, dtype = (
            self._plan.collective,
            self._reduction.memories,
            self._dtype,
        )
        positions, name = self._bucket.positions, self._name
        shapes = [call.shapes[p].as_list() for p in positions]
        partials = [
            self._within_memories(
                how.op, f"{name}/local_{position}", self._operands(position)
            )
            for position in positions
        ]
        # One row of ``partials`` per tensor, one vector per memory.
        packed = [
            self._emit.pack(
                f"{name}/bucket_{m}", of_memory, shapes, dtype, self._devices[m]
            )
            for m, of_memory in zip(memories, zip(*partials, strict=True), strict=True)
        ]
        size = sum(int(call.shapes[p].num_elements()) for p in positions)
        combined = self._reduction.between_memories(
            how, name, packed, dtype, tf.TensorShape([size])
        )
        # Each memory unpacks its own copy, so that one transfer moves the bucket.
        unpacked = [
            self._emit.unpack(
                f"{name}/unpack_{m}", ref, shapes, dtype, self._devices[m]
            )
            for m, ref in zip(memories, combined, strict=True)
        ]
        return [self._distribute(parts) for parts in zip(*unpacked, strict=True)]

    def stacked(self) -> tuple[Tensor, ...]:
        """Stacks the replicas' tensors, and those of all workers."""
        device = self._owner_device
        ops = NodeOps(self._emit, f"{self._name}/pack", self._dtype, device)
        packed = ops.stack(self.operands)
        if self._workers is not None:
            count = len(self.operands)
            shape = tf.TensorShape([count]).concatenate(self._shape)
            self._check_shape(packed, device)
            packed = self._workers.gather(
                self._name, packed, self._dtype, shape, device
            )
        return (packed,) * len(self.operands)

    def joined(self) -> tuple[Tensor, ...]:
        """Joins the replicas' rows, and those of all workers."""
        device = self._owner_device
        count = len(self.operands)
        joined = NodeOps(self._emit, f"{self._name}/rows", self._dtype, device).concat(
            self.operands
        )
        if self._workers is not None:
            index = self._plan.collective.index
            rows = self._rows.setdefault(index, UnevenRows(self._workers))
            joined = rows.gather(
                self._name, joined, self._dtype, self._shape, count, device
            )
        return (joined,) * count

    def received_from(self, replica_id: int) -> tuple[Tensor, ...]:
        """Finds the operand of a replica in this program, or receives it."""
        count = len(self.operands)
        if self._workers is None:
            return (self.operands[replica_id],) * count
        program_id, local = divmod(replica_id, count)
        device = self._devices[local]
        self._check_shape(self.operands[local], device)
        sent = self._workers.broadcast(
            self._name,
            self.operands[local],
            self._dtype,
            self._shape,
            program_id,
            device,
        )
        return (sent,) * count

    @property
    def _owner_device(self) -> str:
        return self._devices[self._bucket.owner]

    def _operands(self, position: int) -> list[Tensor]:
        # Found once: what is behind a gate is emitted when it is asked for.
        if position not in self._by_position:
            node = self._plan.collective.operands[position]
            replicas = range(len(self._devices))
            self._by_position[position] = [self._operand(r, node) for r in replicas]
        return self._by_position[position]

    def _within_memories(
        self, op: str, name: str, operands: Sequence[Tensor]
    ) -> list[Tensor]:
        # Of the reductions only these ops broadcast: [1] and [3] would become [3].
        may_broadcast = op in PAIRWISE and not self._shape.is_fully_defined()
        if may_broadcast and len(operands) > 1:
            first = shape_check.between_replicas(
                self._emit,
                f"{name}/check",
                str(self._plan.collective.kind),
                operands,
                self._dtype,
                self._devices,
            )
            operands = [first, *operands[1:]]
        return self._reduction.within_memories(op, name, operands, self._dtype)

    def _check_shape(self, ref: Tensor, device: str) -> None:
        """Compares shapes over workers where the trace does not know them."""
        if self._workers is not None and not self._shape.is_fully_defined():
            name = f"{self._name}/check"
            self._workers.check_shape(name, ref, self._dtype, device)

    def _distribute(self, by_memory: Sequence[Any]) -> tuple[Tensor, ...]:
        """Gives every replica the result of its memory."""
        of_memory = dict(zip(self._reduction.memories, by_memory, strict=True))
        return tuple(of_memory[memory] for memory in self._topology.memories)
