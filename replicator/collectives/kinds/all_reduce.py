"""all_reduce: combines a value over replicas. Users call ``collectives/reductions.py``.

The gradient of a sum or mean is the sum or mean of the gradients. That of a minimum or
maximum is their sum, split equally over the replicas with the extreme value.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.kind import (
    REDUCE,
    TENSORS,
    BetweenWorkers,
    CollectiveKind,
    OfOperandShape,
    Transfer,
    reduced_bytes,
)
from replicator.core.context import wire_of
from replicator.core.devices import NCCL_DTYPES, RING_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.kind import Links, Node, Operands, Ops, Sums
    from replicator.core.context import ReplicaContext
    from replicator.core.topology import Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce(OfOperandShape, CollectiveKind):
    """A reduction over replicas, whose result every replica gets."""

    op: str  # ``sum``, ``mean``, ``min`` or ``max``.
    # Type in which wider floating operands are sent between memories, or None for their
    # own; gradients are sent in full precision.
    wire_dtype: tf.DType | None = None

    name = "all_reduce"
    is_invariant = True
    is_fused = True

    @property
    def parameter(self) -> str:
        """The reduction."""
        return self.op

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """See the top of this file."""
        if self.op in ("sum", "mean"):
            return differentiable.communicate(context, AllReduce(op=self.op), dys)
        holds = [tf.cast(tf.equal(x, y), y.dtype) for x, y in zip(xs, ys, strict=True)]
        counts = all_sum(context, holds)
        totals = all_sum(context, dys)
        return [h * t / c for h, t, c in zip(holds, totals, counts, strict=True)]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Reduces each element by itself, so that of all iterations at once."""
        return differentiable.communicate(context, self, [stacked])[0]

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """R times the operand for a sum, otherwise the operand."""
        del replica
        if self.op != "sum" or num_replicas == 1:
            return operand
        return ops.scale(operand, num_replicas)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Reduces in the type that is sent; minimum and maximum of what is stacked."""
        sent = [tf.cast(t, self.sent_dtype(t.dtype)) for t in tensors]
        if self.op in ("sum", "mean"):
            reduced = sums.reduce(sent, self.op)
        else:
            rows = sums.stack(sent)
            reduced = [TENSORS.reduce(self.op, tf.unstack(row)) for row in rows]
        return [tf.cast(y, x.dtype) for x, y in zip(tensors, reduced, strict=True)]

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        """The wire type for wider floats."""
        return wire_of(dtype, self.wire_dtype)

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """On an owner's device, or on every device at once."""
        is_sum = self.op in ("sum", "mean")
        if not is_sum:
            return "pairwise"
        if not topology.has_own_gpus or not operands.have_static_shapes:
            return "add_n"
        flat = "ring" if topology.has_virtual_gpus else "nccl"
        allowed = RING_DTYPES if flat == "ring" else NCCL_DTYPES
        sent = {self.sent_dtype(dtype) for dtype in operands.dtypes}
        return flat if sent <= allowed else "add_n"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Reduces within memories, between them, and between workers."""
        return at.reduced(self.op, self.wire_dtype)

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """Each memory sends one tensor to the owner, and gets one back.

        Where they are in several processes, it is one of each.
        """
        for memory in dict.fromkeys(topology.leaders(owner)):
            yield Transfer(memory, owner, num_bytes)
            yield Transfer(owner, memory, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """One tensor per worker is reduced."""
        return BetweenWorkers(REDUCE, reduced_bytes(num_bytes, topology))


def all_sum(context: ReplicaContext, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums each tensor over replicas; has gradients."""
    return differentiable.communicate(context, AllReduce(op="sum"), tensors)
