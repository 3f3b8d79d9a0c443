"""Link: replaces the markers of collectives by the cross-replica computation.

Of a reduction, replicas that share memory are reduced first; the remaining tensors, one
per memory, are combined on an owner device and, with several workers, between them.
GPUs combine theirs by one collective op over all replicas of the job. Tensors may leave
a memory in a narrower type.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from replicator.core.devices import Group, Topology, flat_group
from replicator.engine.body import Ref, Tensor
from replicator.engine.chain import Chain, Operand
from replicator.engine.emitter import PAIRWISE, Emitter, NodeOps, check_alike
from replicator.engine.plan import FLAT, Bucket, CollectivePlan

if TYPE_CHECKING:
    from replicator.collectives.kinds import CollectiveKind

    FindOperand = Callable[[int, str], Tensor]


# Results are by replica of this program. Every program must use what it gathers, for
# any of its replicas: what nobody uses is not run, and others would wait forever.
class BucketLinks:
    """What a kind makes its collective of: one bucket of a plan."""

    def __init__(
        self,
        linker: Linker,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operand: FindOperand,
    ) -> None:
        # A gradient is reduced where it is, and nowhere else.
        topology = linker.topology.at(bucket.logical_device)
        call, position = plan.collective, bucket.positions[0]
        self.num_replicas = call.num_replicas
        self.first_replica_id = topology.first_replica_id
        self._workers = linker.workers
        self.num_workers = self._workers.group.num_workers if self._workers else 1
        self._linker, self._emit = linker, linker.emit
        self._plan, self._bucket, self._name = plan, bucket, name
        self._topology, self._devices = topology, topology.replica_devices
        self._dtype, self._shape = call.dtypes[position], call.shapes[position]
        # The first replica of each memory, which stands for all that read it.
        self._memories = tuple(dict.fromkeys(topology.memories))
        self._is_transferred = len(self._memories) > 1 or linker.workers is not None
        replicas = range(len(self._devices))
        self._operands = {
            position: [operand(r, call.operands[position]) for r in replicas]
            for position in bucket.positions
        }
        self.every = [ref for refs in self._operands.values() for ref in refs]
        self._ops = [self._on(replica, f"on_{replica}") for replica in replicas]

    @property
    def operands(self) -> Sequence[Tensor]:
        """By replica of this program, the operand, if it is a single tensor."""
        return self._operands[self._bucket.positions[0]]

    def ops(self, replica: int) -> NodeOps:
        return self._ops[replica]

    def _on(self, replica: int, part: str, dtype: tf.DType | None = None) -> NodeOps:
        name = f"{self._name}/{part}"
        return NodeOps(self._emit, name, dtype or self._dtype, self._devices[replica])

    def local(self, kind: CollectiveKind) -> list[tuple[Tensor, ...]]:
        """Results as if all replicas held the operand of each, or of the only one."""
        count = self.num_replicas
        own = [
            self._topology.replica_id(replica) % count
            for replica in range(len(self._devices))
        ]
        return [
            tuple(
                kind.local_result(self._ops[replica], operand, own[replica], count)
                for replica, operand in enumerate(operands)
            )
            for operands in self._operands.values()
        ]

    def partials(self, op: str) -> list[tuple[int, Tensor]]:
        """Reduces within memories: a replica and a tensor on its device, for each."""
        within = self._within_memories(op, self._bucket.positions[0])
        is_by_memory = len(within) == len(self._memories)
        places = self._memories if is_by_memory else range(len(within))
        return list(zip(places, within, strict=True))

    def reduced(self, op: str) -> list[tuple[Tensor, ...]]:
        """Reduces each tensor of the bucket over all replicas of the job."""
        dtype, positions = self._dtype, self._bucket.positions
        sent = self._plan.collective.kind.sent_dtype(dtype)
        wire = sent if self._is_transferred else dtype
        within = [self._within_memories(op, position) for position in positions]
        partials, shape = within[0], self._shape
        shapes: list[list[int]] = []
        if self._workers is not None and len(positions) == 1:
            device = self._devices[self._memories[0]]
            given = Operand(partials[0], dtype, shape, device)
            self._workers.check_shape(f"{self._name}/check", given)
        if len(positions) > 1:
            # Several tensors are sent as one: one row of ``within`` per tensor, one
            # vector per memory.
            shapes = [self._plan.collective.shapes[p].as_list() for p in positions]
            shape = tf.TensorShape([sum(map(math.prod, shapes))])
            partials = [
                self._on(memory, f"bucket_{memory}").pack(values, shapes)
                for memory, values in zip(
                    self._memories, zip(*within, strict=True), strict=True
                )
            ]
        sums = self._between_memories(op, wire, partials, shape)
        # By memory, which widens and unpacks its own copy: one transfer moves a bucket.
        received: dict[int, Sequence[Tensor]] = {}
        for memory, ref in zip(self._memories, sums, strict=True):
            total = self._on(memory, f"receive_{memory}").cast(ref, wire)
            received[memory] = [total]
            if shapes:
                ops = self._on(memory, f"unpack_{memory}")
                received[memory] = ops.unpack(total, shapes)
        by_replica = [received[memory] for memory in self._topology.memories]
        return list(zip(*by_replica, strict=True))

    def stacked(self) -> tuple[Tensor, ...]:
        owner, count = self._bucket.owner, len(self.operands)
        stacked = self._on(owner, "pack").stack(self.operands)
        if self._workers is not None:
            shape = tf.TensorShape([count]).concatenate(self._shape)
            given = Operand(stacked, self._dtype, shape, self._devices[owner])
            self._workers.check_shape(f"{self._name}/check", given)
            stacked = self._workers.gather(self._name, given)
        return (stacked,) * count

    def joined(self) -> tuple[Tensor, ...]:
        owner, count = self._bucket.owner, len(self.operands)
        joined = self._on(owner, "rows").concat(self.operands)
        if self._workers is not None:
            given = Operand(joined, self._dtype, self._shape, self._devices[owner])
            call = self._plan.collective.index
            joined = self._workers.gather_rows(self._name, call, given, count)
        return (joined,) * count

    def received_from(self, replica_id: int) -> tuple[Tensor, ...]:
        count = len(self.operands)
        if self._workers is None:
            return (self.operands[replica_id],) * count
        program_id, local = divmod(replica_id, count)
        device, own = self._devices[local], self.operands[local]
        given = Operand(own, self._dtype, self._shape, device)
        self._workers.check_shape(f"{self._name}/check", given)
        return (self._workers.broadcast(self._name, given, program_id),) * count

    def _within_memories(self, op: str, position: int) -> list[Tensor]:
        """Reduces among replicas that share memory: one operand per memory is left."""
        # Where nothing leaves the only memory, the operands stay as they are: one
        # reduction, on the owner's device, does all.
        name, operands = f"{self._name}/local_{position}", self._operands[position]
        # Of the reductions only these ops broadcast: [1] and [3] would become [3].
        may_broadcast = op in PAIRWISE and not self._shape.is_fully_defined()
        if may_broadcast and len(operands) > 1:
            (first,), _ = self._emit.inline(
                f"{name}/check",
                check_alike,
                [(operand, self._dtype) for operand in operands],
                self._devices[0],
                what=str(self._plan.collective.kind),
                devices=tuple(self._devices),
            )
            operands = [first, *operands[1:]]
        if not self._is_transferred:
            return operands
        return [
            self._on(memory, f"local_{position}_{memory}").reduce(
                op, [operands[r] for r in self._topology.members(memory)]
            )
            for memory in self._memories
        ]

    def _between_memories(
        self, op: str, wire: tf.DType, operands: Sequence[Tensor], shape: tf.TensorShape
    ) -> list[Tensor]:
        """Combines what ``_within_memories`` left, sent in a type."""
        name, owner, dtype = self._name, self._bucket.owner, self._dtype
        if self._plan.algorithm in FLAT:
            return self._reduce_all(op, wire, operands)
        leaders = self._topology.leaders(owner)
        near = self._topology.memories[owner]
        if self._is_transferred:
            by_leader: dict[int, list[Tensor]] = {}
            for memory, ref in zip(self._memories, operands, strict=True):
                by_leader.setdefault(leaders[memory], []).append(ref)
            operands = []
            for leader, refs in by_leader.items():
                ref = self._on(leader, f"near_{leader}").reduce(op, refs)
                if leader != near:  # what is not sent need not be rounded
                    ref = self._on(leader, f"send_{leader}", wire).cast(ref, dtype)
                    # The owner sums in full width what arrives rounded.
                    ref = self._on(owner, f"widen_{leader}").cast(ref, wire)
                operands.append(ref)
        total = self._on(owner, "total").reduce(op, operands)
        if op == "mean":
            # Before it is rounded: a mean does not overflow where a sum would.
            total = self._on(owner, "mean").scale(total, 1.0 / self.num_replicas)
        # Rounded on the owner too: all replicas get the same bits.
        total = self._on(owner, "narrow", wire).cast(total, dtype)
        if self._workers is not None:
            given = Operand(total, wire, shape, self._devices[owner])
            total = self._workers.reduce(name, op, given)
        # To the memories of another process it travels once.
        sources = {
            leader: total
            if leader == near or count == 1
            else self._emit.add(
                f"{name}/lead_{leader}",
                "Identity",
                [total],
                self._devices[leader],
                T=wire,
            )
            for leader, count in collections.Counter(
                leaders[memory] for memory in self._memories
            ).items()
        }
        return [sources[leaders[memory]] for memory in self._memories]

    def _reduce_all(
        self, op: str, wire: tf.DType, operands: Sequence[Tensor]
    ) -> list[Tensor]:
        """Sums over all replicas of the job at once, in the type that is sent."""
        sent = {
            device: self._on(replica, f"send_{replica}", wire).cast(ref, self._dtype)
            for replica, (device, ref) in enumerate(
                zip(self._devices, operands, strict=True)
            )
        }
        group = None if self._workers is None else self._workers.group
        flat = flat_group(self._topology, group)
        algorithm = self._plan.algorithm
        sums: list[Tensor] = [
            *self._linker.chain.sum_all(
                f"{self._name}/all", flat, sent, wire, algorithm
            ).values()
        ]
        if op == "mean":
            sums = [
                self._on(r, f"mean_{r}", wire).scale(ref, 1.0 / self.num_replicas)
                for r, ref in enumerate(sums)
            ]
        return sums


class Linker:
    def __init__(
        self,
        topology: Topology,
        prefix: str,
        group: Group | None = None,
        first_controls: Sequence[str] = (),
        *,
        is_local: bool = False,
    ) -> None:
        # By marker name, the result on each replica.
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self.emit = Emitter()
        self.nodes = self.emit.nodes
        self.topology = topology
        has_virtual_gpus = topology.has_virtual_gpus
        self.chain = Chain(
            group, self.emit, first_controls, has_virtual_gpus=has_virtual_gpus
        )
        # What combines tensors of all workers, if there are several.
        self.workers = None if group is None else self.chain
        self._prefix = prefix
        # Of a measuring control, every replica computes as if all others held its own
        # values (``local_result`` of the kind): a mean is its operand, a sum is R times
        # its operand, a gather is R copies of it. So values keep their magnitude and
        # shapes, and everything but the collectives is the same. What replicas that
        # share memory compute once from results is still computed once, from the values
        # of one of them: that includes the update of shared variables. An operand that
        # nothing reads is still computed, because the step ends after it.
        self._is_local = is_local
        self._operands: list[str] = []

    @property
    def awaited(self) -> list[str]:
        """Nodes that the step waits for, besides its outputs and effects."""
        return [*self.chain.ends, *self._operands]

    def link(self, plan: CollectivePlan, operand: FindOperand) -> None:
        call = plan.collective
        is_gated = call.needed_if and call.num_replicas > 1 and not self._is_local
        for index, bucket in enumerate(plan.buckets):
            what = "local" if self._is_local else "collective"
            name = f"{self._prefix}/{what}_{call.index}_{index}"
            link = self._link_gated if is_gated else self._link_bucket
            results = link(plan, bucket, name, operand)
            markers = [call.markers[position] for position in bucket.positions]
            self.results.update(zip(markers, results, strict=True))

    def _link_bucket(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: FindOperand
    ) -> list[tuple[Tensor, ...]]:
        """By tensor, the result on each replica."""
        kind = plan.collective.kind
        links = BucketLinks(self, plan, bucket, name, operand)
        if self._is_local:
            self._operands += [x.node for x in links.every if isinstance(x, Ref)]
        is_local = self._is_local or links.num_replicas == 1
        return links.local(kind) if is_local else kind.link(links)

    def _link_gated(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: FindOperand
    ) -> list[tuple[Tensor, ...]]:
        """Links a transfer that happens only where its condition holds."""
        # Each operand passes a ``Switch`` on its device. If the condition is false,
        # nothing leaves the device, and the nodes that follow (sums, transfers,
        # collectives between workers) do not run. A ``Merge`` on each device that uses
        # the result ends this: it returns the result, or an empty tensor. The condition
        # is the same on all replicas and workers, so all skip the same collectives.
        call, emit = plan.collective, self.emit.add
        topology = self.topology.at(bucket.logical_device)
        devices = topology.replica_devices
        conditions = [
            operand(replica, str(call.needed_if)) for replica in range(len(devices))
        ]
        dtypes = dict(zip(call.operands, call.dtypes, strict=True))

        def gated(replica: int, node: str) -> Tensor:
            part = f"{name}/gate/operand_{replica}_{node}"
            inputs = [operand(replica, node), conditions[replica]]
            on = emit(part, "Switch", inputs, devices[replica], T=dtypes[node])
            return Ref(node=on.node, port="output_true:0")

        def ended(part: str, ref: Tensor, memory: int, index: int) -> Ref:
            device, dtype = devices[memory], call.dtypes[index]
            both = [conditions[memory]] * 2
            off = emit(f"{part}/off", "Switch", both, device, T=tf.bool)
            # An edge has no side: what follows the identity follows this side only.
            side = emit(f"{part}/pivot", "Identity", [off], device, T=tf.bool)
            # Of the same rank, so that elementwise ops and reductions take it.
            nothing = np.zeros(
                [0] * (call.shapes[index].rank or 0), dtype.as_numpy_dtype
            )
            given = {"dtype": dtype, "value": nothing}
            other = emit(f"{part}/nothing", "Const", [], device, [side.node], **given)
            return emit(part, "Merge", [ref, other], device, N=2, T=dtype)

        results: list[tuple[Tensor, ...]] = []
        for index, by_replica in zip(
            bucket.positions, self._link_bucket(plan, bucket, name, gated), strict=True
        ):
            # Per memory: a result that is merged elsewhere would be sent once more.
            keys = list(zip(by_replica, topology.memories, strict=True))
            merged: dict[tuple[Tensor, int], Ref] = {}
            for replica, (ref, memory) in enumerate(keys):
                if (ref, memory) not in merged:
                    part = f"{name}/gate/result_{index}_{replica}"
                    merged[ref, memory] = ended(part, ref, memory, index)
            results.append(tuple(merged[key] for key in keys))
        # What follows runs even where this does not.
        ends = {
            device: ref.node
            for device, ref in zip(devices, results[0], strict=True)
            if isinstance(ref, Ref)
        }
        if plan.algorithm in FLAT:
            self.chain.continue_after_gate(ends)
        elif self.workers is not None:
            owner_memory = self.topology.memories[bucket.owner]
            self.chain.continue_after(ends[devices[owner_memory]])
        return results
