"""Link: put the cross-replica computation where the markers stood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine import kernels
from replicator.engine.body import Ref, make_const, make_node
from replicator.engine.gate import Gate
from replicator.reducible import wire_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine.cross_worker import CrossWorker
    from replicator.engine.plan import Bucket, CollectivePlan
    from replicator.engine.trace import Collective
    from replicator.topology import Topology

    # (replica_id, operand node) -> the operand on that replica
    Tensor = Ref | str  # a node's output, or a function argument
    Operand = Callable[[int, str], Tensor]

_PAIRWISE = {"min": "Minimum", "max": "Maximum"}


class Linker:
    """Emits the nodes of planned collectives.

    Attributes:
      nodes: ``NodeDef``s emitted so far.
      results: By marker name, the result on each replica.
    """

    def __init__(
        self, topology: Topology, prefix: str, workers: CrossWorker | None = None
    ) -> None:
        """Prepares linking.

        Args:
          topology: Where the replicas of this program are.
          prefix: What names of nodes begin with.
          workers: The leg to the programs of other workers; None if there are none.
        """
        self.nodes: list[Any] = []
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self._topology = topology
        self._devices = topology.replica_devices
        # The first replica of each memory stands for all that read it.
        self._memories = tuple(dict.fromkeys(topology.memories))
        self._prefix = prefix
        self._workers = workers

    def link(self, plan: CollectivePlan, operand: Operand) -> None:
        """Emits one collective for all replicas."""
        for index, bucket in enumerate(plan.buckets):
            name = f"{self._prefix}/collective_{plan.collective.index}_{index}"
            is_single = len(bucket.positions) == 1
            link = self._link_single if is_single else self._link_fused
            if plan.collective.needed_if is None or plan.algorithm == "wire":
                link(plan, bucket, name, operand)
            else:
                self._link_gated(plan, bucket, name, operand, link)

    def _link_gated(
        self,
        plan: CollectivePlan,
        bucket: Bucket,
        name: str,
        operand: Operand,
        link: Callable[..., None],
    ) -> None:
        """Links a transfer that happens only where its condition holds."""
        collective = plan.collective
        condition = str(collective.needed_if)
        conditions = [operand(r, condition) for r in range(len(self._devices))]
        gate = Gate(f"{name}/gate", self._topology, conditions, self._add)
        dtypes = dict(zip(collective.operands, collective.dtypes, strict=True))

        def gated(replica: int, node: str) -> Tensor:
            return gate.operand(replica, node, operand(replica, node), dtypes[node])

        link(plan, bucket, name, gated)
        for position in bucket.positions:
            marker = collective.markers[position]
            self.results[marker] = gate.results(
                self.results[marker],
                collective.dtypes[position],
                collective.shapes[position],
            )
        if self._workers is not None:
            # What follows a collective that does not run would not run either.
            marker = collective.markers[bucket.positions[0]]
            home = self._topology.memories[bucket.owner]
            merged = self.results[marker][home]
            assert isinstance(merged, Ref)
            self._workers.go_on_after(merged.node)

    def _link_single(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        collective = plan.collective
        (position,) = bucket.positions
        node = collective.operands[position]
        operands = [operand(r, node) for r in range(len(self._devices))]
        dtype = collective.dtypes[position]
        if plan.algorithm == "wire":
            source = self._broadcast(collective, name, operands, position)
            results = (source,) * len(operands)
        elif plan.algorithm == "pack":
            attrs = {"N": len(operands), "T": dtype, "axis": 0}
            device = self._devices[bucket.owner]
            packed: Tensor = self._add(
                f"{name}/pack", "Pack", operands, device, "output:0", attrs
            )
            if self._workers is not None:
                shape = tf.TensorShape([len(operands)]).concatenate(
                    collective.shapes[position]
                )
                self._check_shape(shape, name, packed, dtype, device)
                packed = self._workers.gather(name, packed, dtype, shape, device)
            results = (packed,) * len(operands)
        else:
            partials = self._reduce_memories(plan, f"{name}/local", operands, dtype)
            self._check_shape(
                collective.shapes[position],
                name,
                partials[0],
                dtype,
                self._devices[self._memories[0]],
            )
            shape = collective.shapes[position]
            combined = self._combine(plan, bucket.owner, name, partials, dtype, shape)
            results = self._hand_out(combined)
        self.results[collective.markers[position]] = results

    def _broadcast(
        self, collective: Collective, name: str, operands: Sequence[Tensor], place: int
    ) -> Tensor:
        """Finds the source among this program's replicas, or lets it be sent."""
        if self._workers is None:
            return operands[collective.source_replica_id]
        program_id, local = divmod(collective.source_replica_id, len(operands))
        dtype, device = collective.dtypes[place], self._devices[local]
        self._check_shape(
            collective.shapes[place], name, operands[local], dtype, device
        )
        shape = collective.shapes[place]
        return self._workers.broadcast(
            name, operands[local], dtype, shape, program_id, device
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
        """Links a reduction of several tensors that travel as one."""
        collective = plan.collective
        dtype = collective.dtypes[bucket.positions[0]]
        sizes = [int(collective.shapes[p].num_elements()) for p in bucket.positions]
        flat: dict[int, list[Ref]] = {memory: [] for memory in self._memories}
        for p in bucket.positions:
            operands = [
                operand(r, collective.operands[p]) for r in range(len(self._devices))
            ]
            partials = self._reduce_memories(plan, f"{name}/local_{p}", operands, dtype)
            for memory, partial in zip(self._memories, partials, strict=True):
                flat[memory].append(
                    self._reshape(
                        f"{name}/pack_{memory}_{p}",
                        partial,
                        [-1],
                        dtype,
                        self._devices[memory],
                    )
                )
        packed = []
        for memory in self._memories:
            device = self._devices[memory]
            axis = self._const(f"{name}/axis_{memory}", np.int32(0), device)
            packed.append(
                self._add(
                    f"{name}/bucket_{memory}",
                    "ConcatV2",
                    [*flat[memory], axis],
                    device,
                    "output:0",
                    {"N": len(sizes), "T": dtype, "Tidx": tf.int32},
                )
            )
        shape = tf.TensorShape([sum(sizes)])
        combined = self._combine(plan, bucket.owner, name, packed, dtype, shape)
        # Each memory unpacks its own copy, so that one transfer moves the bucket.
        unpacked = [
            self._unpack(f"{name}/unpack_{m}", ref, sizes, dtype, self._devices[m])
            for m, ref in zip(self._memories, combined, strict=True)
        ]
        for index, position in enumerate(bucket.positions):
            shape = list(collective.shapes[position])
            self.results[collective.markers[position]] = self._hand_out(
                [
                    self._reshape(
                        f"{name}/result_{memory}_{position}",
                        refs[index],
                        shape,
                        dtype,
                        self._devices[memory],
                    )
                    for memory, refs in zip(self._memories, unpacked, strict=True)
                ]
            )

    def _reduce_memories(
        self,
        plan: CollectivePlan,
        name: str,
        operands: Sequence[Tensor],
        dtype: tf.DType,
    ) -> list[Tensor]:
        """Reduces among replicas that share memory: one operand per memory is left."""
        if len(self._memories) == 1 and self._workers is None:
            return list(operands)  # nothing else follows: one reduction does all
        partials = []
        for memory in self._memories:
            mine = [operands[r] for r in self._topology.members(memory)]
            partials.append(
                mine[0]
                if len(mine) == 1
                else self._reduce(
                    plan.collective.op,
                    f"{name}_{memory}",
                    mine,
                    dtype,
                    self._devices[memory],
                )
            )
        return partials

    def _hand_out(self, by_memory: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gives every replica the result of its memory."""
        if len(by_memory) == 1:
            return (by_memory[0],) * len(self._devices)
        of_memory = dict(zip(self._memories, by_memory, strict=True))
        return tuple(of_memory[memory] for memory in self._topology.memories)

    def _combine(
        self,
        plan: CollectivePlan,
        owner: int,
        name: str,
        operands: Sequence[Tensor],
        dtype: tf.DType,
        shape: tf.TensorShape,
    ) -> Sequence[Tensor]:
        """Emits the reduction between memories; returns the result on each."""
        op = plan.collective.op
        wire = wire_of(dtype, plan.collective.wire_dtype)
        is_compressed = wire != dtype and len(self._memories) > 1
        device = self._devices[owner]
        if is_compressed:
            # Who sends rounds before; what arrives is summed in full width. What the
            # owner itself adds does not travel, and need not be rounded.
            is_nccl = plan.algorithm == "nccl"
            home = None if is_nccl else self._topology.memories[owner]
            sent = [
                self._convert(
                    f"{name}/send_{m}",
                    ref,
                    dtype,
                    dtype if m == home else wire,
                    self._devices[m],
                )
                for m, ref in zip(self._memories, operands, strict=True)
            ]
            if is_nccl:  # sums in the type that travels
                return self._receive(
                    name, self._nccl(op, name, sent, wire), wire, dtype
                )
            operands = [
                self._convert(
                    f"{name}/widen_{m}",
                    ref,
                    dtype if m == home else wire,
                    dtype,
                    device,
                )
                for m, ref in zip(self._memories, sent, strict=True)
            ]
        if plan.algorithm == "nccl":
            return self._nccl(op, name, operands, dtype)
        total = self._reduce(op, f"{name}/total", operands, dtype, device)
        if op == "mean":
            # Before it is rounded: a mean does not overflow where a sum would.
            count = plan.collective.num_replicas
            total = self._scale(f"{name}/mean", total, count, dtype, device)
        if self._workers is not None:
            narrow = self._convert(f"{name}/narrow", total, dtype, wire, device)
            total = self._workers.reduce(name, narrow, op, wire, shape, device)
            if wire == dtype:
                return [total] * len(self._memories)
            return self._receive(name, [total] * len(self._memories), wire, dtype)
        if is_compressed:
            # Rounded on the owner too: all replicas get the same bits.
            total = self._cast(f"{name}/round", total, dtype, wire, device)
            return self._receive(name, [total] * len(self._memories), wire, dtype)
        return [total] * len(self._memories)

    def _receive(
        self, name: str, refs: Sequence[Tensor], wire: tf.DType, dtype: tf.DType
    ) -> list[Tensor]:
        """Widens what arrived, on the device of each memory."""
        return [
            self._cast(f"{name}/receive_{m}", ref, wire, dtype, self._devices[m])
            for m, ref in zip(self._memories, refs, strict=True)
        ]

    def _reduce(
        self,
        op: str,
        name: str,
        operands: Sequence[Tensor],
        dtype: tf.DType,
        device: str,
    ) -> Tensor:
        """Emits a sum (of a mean too), a minimum or a maximum on one device."""
        if len(operands) == 1:
            return operands[0]
        if op in _PAIRWISE:
            result: Tensor = operands[0]
            for index, other in enumerate(operands[1:], start=1):
                result = self._add(
                    f"{name}/{index}",
                    _PAIRWISE[op],
                    [result, other],
                    device,
                    "z:0",
                    {"T": dtype},
                )
            return result
        attrs = {"N": len(operands), "T": dtype}
        return self._add(name, "AddN", operands, device, "sum:0", attrs)

    def _nccl(
        self, op: str, name: str, operands: Sequence[Tensor], dtype: tf.DType
    ) -> tuple[Tensor, ...]:
        # All devices meet in the kernel under this name; it is unique per function.
        attrs = {
            "T": dtype,
            "reduction": "sum",
            "num_devices": len(operands),
            "shared_name": name,
        }
        results: list[Tensor] = []
        for replica_id, (device, ref) in enumerate(
            zip(self._devices, operands, strict=True)
        ):
            one = f"{name}/nccl_{replica_id}"
            total = self._add(one, "NcclAllReduce", [ref], device, "data:0", attrs)
            if op == "mean":
                count = len(operands)
                total = self._scale(f"{one}/mean", total, count, dtype, device)
            results.append(total)
        return tuple(results)

    def _convert(
        self, name: str, ref: Tensor, source: tf.DType, target: tf.DType, device: str
    ) -> Tensor:
        if source == target:
            return ref
        return self._cast(name, ref, source, target, device)

    def _cast(
        self, name: str, ref: Tensor, source: tf.DType, target: tf.DType, device: str
    ) -> Ref:
        attrs = {"SrcT": source, "DstT": target}
        return self._add(name, "Cast", [ref], device, "y:0", attrs)

    def _scale(
        self, name: str, ref: Tensor, num_replicas: int, dtype: tf.DType, device: str
    ) -> Ref:
        share = np.array(1.0 / num_replicas, dtype.as_numpy_dtype)
        factor = self._const(f"{name}/share", share, device)
        return self._add(name, "Mul", [ref, factor], device, "z:0", {"T": dtype})

    def _unpack(
        self, name: str, ref: Tensor, sizes: list[int], dtype: tf.DType, device: str
    ) -> list[Ref]:
        lengths = self._const(f"{name}/sizes", np.array(sizes, np.int32), device)
        axis = self._const(f"{name}/axis", np.int32(0), device)
        split = self._add(
            name,
            "SplitV",
            [ref, lengths, axis],
            device,
            "output:0",
            {"num_split": len(sizes), "T": dtype, "Tlen": tf.int32},
        )
        return [Ref(node=split.node, port=f"output:{i}") for i in range(len(sizes))]

    def _reshape(
        self, name: str, ref: Tensor, shape: list[int], dtype: tf.DType, device: str
    ) -> Ref:
        target = self._const(f"{name}/shape", np.array(shape, np.int32), device)
        attrs = {"T": dtype, "Tshape": tf.int32}
        return self._add(name, "Reshape", [ref, target], device, "output:0", attrs)

    def _const(self, name: str, value: Any, device: str) -> Ref:
        self.nodes.append(make_const(name, value, device))
        return Ref(node=name, port="output:0")

    def _add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        device: str,
        port: str,
        attrs: dict[str, Any],
        controls: Sequence[str] = (),
    ) -> Ref:
        device = kernels.home(op, attrs.get("T"), device)
        self.nodes.append(make_node(name, op, inputs, device, attrs, controls))
        return Ref(node=name, port=port)
