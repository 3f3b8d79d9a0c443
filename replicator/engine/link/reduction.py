"""Reduction: one operand per replica becomes one result per memory.

Replicas that share memory are reduced first; the remaining tensors, one per memory, are
combined on an owner device and, with several workers, between them. GPUs combine theirs
by one collective op over all replicas of the job. Tensors may leave a memory in a
narrower type.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from replicator.collectives.kind import Ops
from replicator.core import devices
from replicator.core.context import wire_of
from replicator.core.topology import flat_group
from replicator.engine.analysis.plan import FLAT
from replicator.engine.graph.body import Ref

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replicator.core.topology import Topology
    from replicator.engine.graph.body import Emitter, Tensor
    from replicator.engine.link.chain import Chain
    from replicator.engine.link.cross_worker import CrossWorker


PAIRWISE = {"min": "Minimum", "max": "Maximum"}


class NodeOps(Ops):
    """The same on values of one type on one device, without Python graph objects."""

    def __init__(self, emit: Emitter, name: str, dtype: tf.DType, device: str) -> None:
        self._emit = emit
        self._name = name
        self._dtype = dtype
        self._device = device
        self._count = 0

    def stack(self, values: Sequence[Tensor]) -> Tensor:
        return self._add("Pack", values, "output:0", N=len(values), axis=0)

    def unstack(self, value: Tensor, count: int) -> list[Tensor]:
        first = self._add("Unpack", [value], "output:0", num=count, axis=0)
        return [Ref(node=first.node, port=f"output:{i}") for i in range(count)]

    def concat(self, values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        return self._emit.concat(self._new(), values, self._dtype, self._device)

    def part(self, value: Tensor, index: int, count: int, *, axis: int = 0) -> Tensor:
        dim = self._emit.const(f"{self._new()}/axis", np.int32(axis), self._device)
        first = self._add("Split", [dim, value], "output:0", num_split=count)
        return Ref(node=first.node, port=f"output:{index}")

    def scale(self, value: Tensor, factor: float) -> Tensor:
        return self._emit.scale(self._new(), value, factor, self._dtype, self._device)

    def zeros_like(self, value: Tensor) -> Tensor:
        return self._add("ZerosLike", [value], "y:0")

    def reduce(self, op: str, values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        if op not in PAIRWISE:
            return self._add("AddN", values, "sum:0", N=len(values))
        result = values[0]
        for other in values[1:]:
            result = self._add(PAIRWISE[op], [result, other], "z:0")
        return result

    def _add(self, op: str, inputs: Sequence[Tensor], port: str, **attrs: int) -> Ref:
        both = {**attrs, "T": self._dtype}
        return self._emit.add(self._new(), op, inputs, self._device, port, both)

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How one bucket is reduced."""

    op: str  # ``sum``, ``mean``, ``min`` or ``max``.
    # Type in which wider floats are sent, or None for their own.
    wire_dtype: tf.DType | None
    algorithm: str  # Of the plan.
    num_replicas: int  # Replicas of the job.
    owner: int  # The replica whose device combines.


class Reduction:
    """Emits the reductions of one program."""

    def __init__(
        self,
        topology: Topology,
        emit: Emitter,
        workers: CrossWorker | None,
        chain: Chain,
    ) -> None:
        # The first replica of each memory, which stands for all that read it.
        self.memories = tuple(dict.fromkeys(topology.memories))
        self._is_transferred = len(self.memories) > 1 or workers is not None
        self._topology = topology
        self._devices = topology.replica_devices
        self._emit = emit
        self._workers = workers
        self._chain = chain

    def within_memories(
        self, op: str, name: str, operands: Sequence[Tensor], dtype: tf.DType
    ) -> list[Tensor]:
        """Reduces among replicas that share memory: one operand per memory is left.

        Where nothing leaves the only memory, the operands stay as they are: one
        reduction, on the owner's device, does all.
        """
        if not self._is_transferred:
            return list(operands)
        return [
            self._reduce(
                op,
                f"{name}_{memory}",
                [operands[r] for r in self._topology.members(memory)],
                dtype,
                self._devices[memory],
            )
            for memory in self.memories
        ]

    def between_memories(
        self,
        how: How,
        name: str,
        operands: Sequence[Tensor],
        dtype: tf.DType,
        shape: tf.TensorShape,
    ) -> list[Tensor]:
        """Combines what ``within_memories`` left."""
        op, device = how.op, self._devices[how.owner]
        wire = wire_of(dtype, how.wire_dtype) if self._is_transferred else dtype
        if how.algorithm in FLAT:
            return self._reduce_all(how, name, operands, dtype, wire)
        leaders = self._topology.leaders(how.owner)
        if self._is_transferred:
            near: dict[int, list[Tensor]] = {}
            for memory, ref in zip(self.memories, operands, strict=True):
                near.setdefault(leaders[memory], []).append(ref)
            operands = [
                self._bring(
                    name,
                    self._reduce(
                        op, f"{name}/near_{leader}", refs, dtype, self._devices[leader]
                    ),
                    leader,
                    how.owner,
                    dtype,
                    wire,
                )
                for leader, refs in near.items()
            ]
        total = self._reduce(op, f"{name}/total", operands, dtype, device)
        if op == "mean":
            # Before it is rounded: a mean does not overflow where a sum would.
            share = 1.0 / how.num_replicas
            total = self._emit.scale(f"{name}/mean", total, share, dtype, device)
        # Rounded on the owner too: all replicas get the same bits.
        total = self._emit.cast(f"{name}/narrow", total, dtype, wire, device)
        if self._workers is not None:
            total = self._workers.reduce(name, total, op, wire, shape, device)
        sources = self._spread(name, total, leaders, how.owner, wire)
        refs = [sources[leaders[memory]] for memory in self.memories]
        return self._receive(name, refs, wire, dtype)

    def _spread(
        self,
        name: str,
        total: Tensor,
        leaders: Sequence[int],
        owner: int,
        wire: tf.DType,
    ) -> dict[int, Tensor]:
        """By leader, what the memories of its process read: it travels once."""
        near = self._topology.memories[owner]
        attrs = {"T": wire}
        return {
            leader: total
            if leader == near or count == 1
            else self._emit.add(
                f"{name}/lead_{leader}",
                "Identity",
                [total],
                self._devices[leader],
                "output:0",
                attrs,
            )
            for leader, count in collections.Counter(
                leaders[memory] for memory in self.memories
            ).items()
        }

    def _bring(
        self,
        name: str,
        ref: Tensor,
        memory: int,
        owner: int,
        dtype: tf.DType,
        wire: tf.DType,
    ) -> Tensor:
        """One operand on the owner, which sums in full width what arrives rounded."""
        if memory == self._topology.memories[owner]:
            return ref  # is not sent, and need not be rounded
        source, target = self._devices[memory], self._devices[owner]
        sent = self._emit.cast(f"{name}/send_{memory}", ref, dtype, wire, source)
        return self._emit.cast(f"{name}/widen_{memory}", sent, wire, dtype, target)

    def _receive(
        self, name: str, refs: Sequence[Tensor], wire: tf.DType, dtype: tf.DType
    ) -> list[Tensor]:
        """Widens what arrived, on the device of each memory."""
        return [
            self._emit.cast(
                f"{name}/receive_{memory}", ref, wire, dtype, self._devices[memory]
            )
            for memory, ref in zip(self.memories, refs, strict=True)
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
        return NodeOps(self._emit, name, dtype, device).reduce(op, operands)

    def _reduce_all(
        self,
        how: How,
        name: str,
        operands: Sequence[Tensor],
        dtype: tf.DType,
        wire: tf.DType,
    ) -> list[Tensor]:
        """Sums over all replicas of the job at once, in the type that is sent."""
        sent = {
            device: self._emit.cast(f"{name}/send_{replica}", ref, dtype, wire, device)
            for replica, (device, ref) in enumerate(
                zip(self._devices, operands, strict=True)
            )
        }
        summed = self._sum_all(name, sent, wire, how.algorithm)
        totals: list[Tensor] = list(summed.values())
        if how.op == "mean":
            share = 1.0 / how.num_replicas
            totals = [
                self._emit.scale(f"{name}/all_{replica}/mean", ref, share, wire, device)
                for replica, (device, ref) in enumerate(summed.items())
            ]
        return self._receive(name, totals, wire, dtype)

    def _sum_all(
        self,
        name: str,
        operands: Mapping[str, Tensor],
        dtype: tf.DType,
        algorithm: str,
    ) -> dict[str, Ref]:
        """Sums over all replicas of the job, by device of this program."""
        group = None if self._workers is None else self._workers.group
        flat = flat_group(self._topology, group)
        return self._chain.reduce_all(
            f"{name}/all", flat, operands, "Add", dtype, algorithm
        )


# TensorFlow's CPU kernels support every type that a collective accepts. GPU kernels do
# not: types that are missing there are combined in host memory. The tables are those of
# TensorFlow 2.21 (a test compares them with its registry). Tensors of int32 are already
# in host memory, where their "GPU" kernels work.

_FLOATS = frozenset(
    {tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128}
)
_REALS = frozenset({tf.bfloat16, tf.float16, tf.float32, tf.float64})
_INTEGERS = frozenset(
    {tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64}
)
GPU_DTYPES: dict[str, frozenset[tf.DType]] = {
    "AddN": _FLOATS | {tf.int32, tf.int64, tf.uint32},
    "Pack": _FLOATS | {tf.bool, tf.int16, tf.int32, tf.int64, tf.uint32, tf.uint64},
    "Minimum": _REALS | _INTEGERS,
    "Maximum": _REALS | _INTEGERS,
    "ConcatV2": _FLOATS | _INTEGERS | {tf.bool},
    "Split": _FLOATS,
    "SplitV": _FLOATS | {tf.int32},
    "Unpack": _FLOATS | {tf.bool, tf.int32, tf.int64, tf.uint8},
    "ZerosLike": _FLOATS | _INTEGERS | {tf.bool},
    "Mul": _FLOATS | _INTEGERS,
}


def supported_device(op: str, dtype: tf.DType | None, device: str) -> str:
    """The device on which an op that is placed on ``device`` can run."""
    allowed = GPU_DTYPES.get(op)
    if "GPU" not in device or allowed is None or dtype in allowed:
        return device
    return devices.cpu_of(device)
