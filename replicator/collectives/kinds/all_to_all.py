"""all_to_all: every replica sends its s-th part of rows to replica s.

Its gradient is the ``all_to_all`` of the gradients: it is its own transpose.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.kind import (
    GATHER,
    BetweenWorkers,
    CollectiveKind,
    OfOperandShape,
    OfOwnType,
    Transfer,
    gathered_bytes,
)
from replicator.collectives.linking import TENSORS, by_replica
from replicator.collectives.nests import as_written, check_rows, dense
from replicator.collectives.rows import swap
from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.linking import Links, Node, Ops
    from replicator.collectives.operands import Operands
    from replicator.collectives.sums import Sums
    from replicator.placement.topology import Topology
    from replicator.step.context import ReplicaContext


@as_written
def all_to_all(value: Any) -> Any:
    """Exchanges parts: replica r gets the r-th part of the rows of every replica.

    Applied twice, it gives the value back. Replicas of one program send each other
    parts only. Between worker processes each worker gathers all tensors and keeps its
    parts.

    Args:
      value: A nest of dense tensors of any type, of the same structure and shapes on
        every replica, whose first dimension is a multiple of the number of replicas in
        sync.

    Returns:
      A nest of the same structure and shapes: on replica r, the r-th parts of all
      replicas, joined in the order of ``replica_id``.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Rows that cannot be divided equally, or a leaf is
        ``tf.IndexedSlices``.
    """
    context = context_lib.require("all_to_all")
    tensors = dense(value, "all_to_all", "divides")
    check_rows(tensors, "all_to_all", context.num_replicas_in_sync)
    results = differentiable.communicate(context, AllToAll(), tensors)
    return tf.nest.pack_sequence_as(value, results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllToAll(OfOperandShape, OfOwnType, CollectiveKind):
    """The parts of all replicas that are for this one."""

    name = "all_to_all"
    parameter = ""
    is_invariant = False
    is_fused = False

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """Sends every part of the gradient back."""
        del xs, ys
        return differentiable.communicate(context, self, dys)

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Iterations become a further dimension of a row."""
        (exchanged,) = differentiable.communicate(context, self, [swap(stacked)])
        return swap(exchanged)

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The own part of the operand, R times."""
        if num_replicas == 1:
            return operand
        part = ops.part(operand, replica, num_replicas)
        return ops.concat([part] * num_replicas)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Stacks all tensors and keeps the own part of each."""
        return [
            _parts_of(TENSORS, rows, sums.replica_id, sums.num_replicas)
            for rows in sums.stack(tensors)
        ]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Each part to the device of its replica; over workers all of them."""
        del operands
        return "parts" if topology.num_programs == 1 else "pack"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Splits where the tensors are, so that only parts leave a memory."""
        count, first = at.num_replicas, at.first_replica_id
        if at.num_workers > 1:
            rows = at.stacked()
            return by_replica(
                at, lambda r: _parts_of(at.ops(r), rows[r], first + r, count)
            )
        sources = list(enumerate(at.operands))
        return by_replica(
            at,
            lambda r: at.ops(r).concat(
                [at.ops(s).part(operand, r, count) for s, operand in sources]
            ),
        )

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """Every replica sends every other one a part."""
        del owner
        count = topology.num_local_replicas
        for source in range(count):
            for target in range(count):
                yield Transfer(source, target, num_bytes / count)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Workers gather all tensors: R times what they need."""
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))


def _parts_of(ops: Ops, stacked: Any, replica: Any, count: int) -> Any:
    """The part of each stacked tensor that is for a replica, joined."""
    return ops.concat(ops.unstack(ops.part(stacked, replica, count, axis=1), count))
