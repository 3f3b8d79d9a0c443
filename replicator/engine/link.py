"""Link: put the cross-replica computation where the markers stood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.body import Ref, make_const, make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine.plan import Bucket, CollectivePlan

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

    def __init__(self, devices: Sequence[str], prefix: str) -> None:
        self.nodes: list[Any] = []
        self.results: dict[str, tuple[Tensor, ...]] = {}
        self._devices = tuple(devices)
        self._prefix = prefix

    def link(self, plan: CollectivePlan, operand: Operand) -> None:
        """Emits one collective for all replicas."""
        for index, bucket in enumerate(plan.buckets):
            name = f"{self._prefix}/collective_{plan.collective.index}_{index}"
            if len(bucket.positions) == 1:
                self._link_single(plan, bucket, name, operand)
            else:
                self._link_fused(plan, bucket, name, operand)

    def _link_single(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        collective = plan.collective
        (position,) = bucket.positions
        node = collective.operands[position]
        operands = [operand(r, node) for r in range(len(self._devices))]
        dtype = collective.dtypes[position]
        self.results[collective.markers[position]] = self._combine(
            plan, bucket.owner, name, operands, dtype
        )

    def _link_fused(
        self, plan: CollectivePlan, bucket: Bucket, name: str, operand: Operand
    ) -> None:
        collective = plan.collective
        dtype = collective.dtypes[bucket.positions[0]]
        sizes = [int(collective.shapes[p].num_elements()) for p in bucket.positions]
        packed = []
        for replica_id, device in enumerate(self._devices):
            flat = [
                self._reshape(
                    f"{name}/pack_{replica_id}_{p}",
                    operand(replica_id, collective.operands[p]),
                    [-1],
                    dtype,
                    device,
                )
                for p in bucket.positions
            ]
            axis = self._const(f"{name}/axis_{replica_id}", np.int32(0), device)
            packed.append(
                self._add(
                    f"{name}/bucket_{replica_id}",
                    "ConcatV2",
                    [*flat, axis],
                    device,
                    "output:0",
                    {"N": len(flat), "T": dtype, "Tidx": tf.int32},
                )
            )
        combined = self._combine(plan, bucket.owner, name, packed, dtype)
        # Each replica unpacks its own copy, so that one transfer moves the bucket.
        unpacked = [
            self._unpack(f"{name}/unpack_{r}", combined[r], sizes, dtype, device)
            for r, device in enumerate(self._devices)
        ]
        for index, position in enumerate(bucket.positions):
            shape = list(collective.shapes[position])
            self.results[collective.markers[position]] = tuple(
                self._reshape(
                    f"{name}/result_{r}_{position}",
                    unpacked[r][index],
                    shape,
                    dtype,
                    device,
                )
                for r, device in enumerate(self._devices)
            )

    def _combine(
        self,
        plan: CollectivePlan,
        owner: int,
        name: str,
        operands: Sequence[Tensor],
        dtype: tf.DType,
    ) -> tuple[Tensor, ...]:
        """Emits the reduction itself; returns the result on each replica."""
        collective, device = plan.collective, self._devices[owner]
        num_replicas = len(operands)
        if plan.algorithm == "wire":
            return (operands[collective.source_replica_id],) * num_replicas
        if plan.algorithm == "pack":
            attrs = {"N": num_replicas, "T": dtype, "axis": 0}
            packed = self._add(name, "Pack", operands, device, "output:0", attrs)
            return (packed,) * num_replicas
        if plan.algorithm == "pairwise":
            result: Tensor = operands[0]
            for index, other in enumerate(operands[1:], start=1):
                result = self._add(
                    f"{name}/{index}",
                    _PAIRWISE[collective.op],
                    [result, other],
                    device,
                    "z:0",
                    {"T": dtype},
                )
            return (result,) * num_replicas
        if plan.algorithm == "nccl":
            return self._nccl(collective.op, name, operands, dtype)
        attrs = {"N": num_replicas, "T": dtype}
        total = self._add(name, "AddN", operands, device, "sum:0", attrs)
        if collective.op == "mean":
            total = self._scale(f"{name}/mean", total, num_replicas, dtype, device)
        return (total,) * num_replicas

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
    ) -> Ref:
        self.nodes.append(make_node(name, op, inputs, device, attrs))
        return Ref(node=name, port=port)
