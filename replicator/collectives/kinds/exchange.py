"""Values that replicas send to others: from one to all, or along a permutation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import differentiable
from replicator.collectives.differentiable import as_written, dense
from replicator.collectives.kind import (
    BROADCAST,
    GATHER,
    NOTHING,
    BetweenWorkers,
    CollectiveKind,
    OfOperandShape,
    OfOwnType,
    Transfer,
    gathered_bytes,
)
from replicator.collectives.kinds.all_reduce import all_sum
from replicator.core import context as context_lib
from replicator.core.step import tensor_of
from replicator.core.validation import is_integer, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicator.collectives.kind import Links, Node, Operands, Ops, Sums
    from replicator.core.context import ReplicaContext
    from replicator.core.topology import Topology


# Its gradient is the sum of the gradients, on the source.


@as_written
def broadcast(value: Any, source_replica_id: int = 0) -> Any:
    """Sends the value of one replica to all replicas.

    Args:
      value: A nest of tensors of any type, or ``tf.IndexedSlices``, with the same
        shapes on every replica; it is evaluated on all of them.
      source_replica_id: A Python int in [0, num_replicas_in_sync): the index of the
        source among the replicas in sync.

    Returns:
      A nest of the same structure and shapes, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: ``source_replica_id`` is not an int, or a leaf is not a dense tensor.
      ValueError: ``source_replica_id`` is out of range.
    """
    context = context_lib.require("broadcast")
    if not is_integer(source_replica_id):
        raise TypeError(
            f"source_replica_id {shown(source_replica_id)} must be a Python int, "
            "because the source is fixed when the step is traced"
        )
    count = context.num_replicas_in_sync
    if not 0 <= source_replica_id < count:
        raise ValueError(
            f"source_replica_id {shown(source_replica_id)} is out of range: there are "
            f"{count} replicas; use 0 to {count - 1}"
        )

    leaves = tf.nest.flatten(value)
    # Slices are sent as two tensors; their dense shape is known on all replicas.
    parts = [
        tensor_of(part, "broadcast() takes a nest of dense tensors")
        for leaf in leaves
        for part in (
            (leaf.values, leaf.indices)
            if isinstance(leaf, tf.IndexedSlices)
            else (leaf,)
        )
    ]
    kind = Broadcast(source_replica_id=source_replica_id)
    sent = iter(differentiable.communicate(context, kind, parts))
    received = [
        tf.IndexedSlices(next(sent), next(sent), leaf.dense_shape)
        if isinstance(leaf, tf.IndexedSlices)
        else next(sent)
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(value, received)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broadcast(OfOperandShape, OfOwnType, CollectiveKind):
    """The value of one replica, which every replica gets."""

    source_replica_id: int  # Whose.

    name = "broadcast"
    is_invariant = True
    is_fused = False

    @property
    def parameter(self) -> str:
        """The source."""
        return str(self.source_replica_id)

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """The sum, on the source."""
        del xs, ys
        is_source = tf.equal(context.replica_id_in_sync_group, self.source_replica_id)
        return [
            tf.where(is_source, dy, tf.zeros_like(dy)) for dy in all_sum(context, dys)
        ]

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Sends the operands of all iterations at once."""
        return differentiable.communicate(context, self, [stacked])[0]

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The operand."""
        del ops, replica, num_replicas
        return operand

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums zeros with the source's value: ``tf.distribute`` has no broadcast."""
        is_source = tf.equal(sums.replica_id, self.source_replica_id)
        return sums.reduce(
            [tf.where(is_source, t, tf.zeros_like(t)) for t in tensors], "sum"
        )

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Every replica reads the source's value."""
        del operands, topology
        return "wire"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Finds the source among this program's replicas, or receives it."""
        return [at.received_from(self.source_replica_id)]

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """Each memory gets the value."""
        del owner
        for memory in dict.fromkeys(topology.memories):
            yield Transfer(self.source_replica_id, memory, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Each worker but the source's gets the value."""
        others = topology.num_programs - 1
        return BetweenWorkers(BROADCAST, float(others * num_bytes))


# Its gradient sends every gradient back from the target to the source.


@as_written
def permute(value: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Sends the value of each source replica to its target replica.

    ``permute(x, [(r, (r + 1) % R) for r in range(R)])`` sends values around a ring;
    without the last pair, down a pipeline. Replicas of one program send each other only
    what the pairs say. Between worker processes, values are gathered if a pair joins
    two workers.

    Args:
      value: A nest of dense tensors of any type, of the same structure and shapes on
        every replica.
      pairs: Source and target, Python ints in [0, num_replicas_in_sync). A replica is
        the source of at most one pair and the target of at most one.

    Returns:
      A nest of the same structure and shapes: the value of its source on each target,
      zeros (``False``, empty strings) on replicas that are the target of no pair.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor, or ``pairs`` are not pairs of ints.
      ValueError: A replica that does not exist, or is a source or a target twice; a
        leaf is ``tf.IndexedSlices``.
    """
    context = context_lib.require("permute")
    checked = _check(pairs, context.num_replicas_in_sync)
    tensors = dense(value, "permute", "sends")
    results = differentiable.communicate(context, Permute(pairs=checked), tensors)
    return tf.nest.pack_sequence_as(value, results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Permute(OfOperandShape, OfOwnType, CollectiveKind):
    """The value of the replica that sends to this one; zeros if none does."""

    pairs: tuple[tuple[int, int], ...]  # Source and target of each value.

    name = "permute"
    is_invariant = False
    is_fused = False

    @property
    def parameter(self) -> str:
        """The pairs."""
        return ", ".join(f"{source}->{target}" for source, target in self.pairs)

    def gradient(
        self,
        context: ReplicaContext,
        xs: Sequence[tf.Tensor],
        ys: Sequence[tf.Tensor],
        dys: Sequence[tf.Tensor],
    ) -> Sequence[tf.Tensor]:
        """Sends back."""
        del xs, ys
        back = Permute(pairs=tuple((target, source) for source, target in self.pairs))
        return differentiable.communicate(context, back, dys)

    def vectorized(self, context: ReplicaContext, stacked: tf.Tensor) -> tf.Tensor:
        """Sends the operands of all iterations at once."""
        return differentiable.communicate(context, self, [stacked])[0]

    def of_own(self, ops: Ops, operand: Any, replica: Any, num_replicas: int) -> Any:
        """The operand; zeros on a single replica that does not send to itself.

        Of several, a control keeps the operand on those that get zeros, too.
        """
        del replica
        is_kept = num_replicas > 1 or self.pairs
        return operand if is_kept else ops.zeros_like(operand)

    def by_sums(self, sums: Sums, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Stacks all tensors and keeps that of the own source."""
        source = tf.constant([self._source(r) for r in range(sums.num_replicas)])[
            sums.replica_id
        ]
        return [
            tf.where(source < 0, tf.zeros_like(rows[0]), rows[tf.maximum(source, 0)])
            for rows in sums.stack(tensors)
        ]

    def algorithm(self, operands: Operands, topology: Topology) -> str:
        """Every replica reads its source's value; over workers, of all of them."""
        del operands
        return "pack" if self._joins_workers(topology.num_local_replicas) else "wire"

    def link(self, at: Links) -> list[tuple[Node, ...]]:
        """Finds sources among this program's replicas, or gathers them."""
        num_local, first = len(at.operands), at.first_replica_id
        rows = None
        if at.num_workers > 1 and self._joins_workers(num_local):
            rows = at.stacked()
        results = []
        for r, operand in enumerate(at.operands):
            source = self._source(at.first_replica_id + r)
            if rows is not None:
                # Zeros are made of what was gathered, too: a worker that did not use it
                # would not take part, and the others would wait for it forever.
                found = at.ops(r).unstack(rows[r], at.num_replicas)[max(source, 0)]
            else:
                found = operand if source < 0 else at.operands[source - first]
            results.append(at.ops(r).zeros_like(found) if source < 0 else found)
        return [tuple(results)]

    def transfers(
        self, num_bytes: int, owner: int, topology: Topology
    ) -> Iterator[Transfer]:
        """One tensor per pair."""
        del owner, topology
        for source, target in self.pairs:
            yield Transfer(source, target, num_bytes)

    def between_workers(self, num_bytes: int, topology: Topology) -> BetweenWorkers:
        """Workers gather all tensors, if one of them needs that of another."""
        if not self._joins_workers(topology.num_local_replicas):
            return BetweenWorkers(NOTHING, 0.0)
        return BetweenWorkers(GATHER, gathered_bytes(num_bytes, topology))

    def _source(self, replica: int) -> int:
        """Who sends to a replica; -1 if nobody does."""
        return next((s for s, target in self.pairs if target == replica), -1)

    def _joins_workers(self, num_local: int) -> bool:
        """Whether a pair joins replicas of two workers; all workers say the same."""
        return any(s // num_local != t // num_local for s, t in self.pairs)


def _check(pairs: Any, num_replicas: int) -> tuple[tuple[int, int], ...]:
    """Pairs as a tuple, in order."""
    is_listed = isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and list(map(is_integer, pair)) == [True, True]
        for pair in pairs
    )
    if not is_listed:
        raise TypeError(
            f"permute takes pairs of source and target, such as [(0, 1), (1, 0)], but "
            f"got {shown(pairs)}; both are Python ints, because the permutation is "
            "fixed when the step is traced"
        )
    for place, role in enumerate(("source", "target")):
        replicas = [pair[place] for pair in pairs]
        for replica in replicas:
            if not 0 <= replica < num_replicas:
                raise ValueError(
                    f"permute got {role} {shown(replica)}, but there are "
                    f"{num_replicas} replicas; use 0 to {num_replicas - 1}"
                )
            if replicas.count(replica) > 1:
                raise ValueError(
                    f"permute got replica {replica} as the {role} of "
                    f"{replicas.count(replica)} pairs; a replica sends to at most one "
                    "and receives from at most one: use broadcast to send to several"
                )
    return tuple(sorted((source, target) for source, target in pairs))
