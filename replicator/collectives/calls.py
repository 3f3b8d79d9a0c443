"""Collectives that users call, over nests; reductions are in ``reductions.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives.differentiable import (
    as_written,
    communicate,
    over_nest,
)
from replicator.collectives.kinds import (
    AllGather,
    AllToAll,
    Broadcast,
    Permute,
    ReduceScatter,
)
from replicator.core import context as context_lib
from replicator.core.step import tensor_of
from replicator.core.validation import format_value, is_integer

if TYPE_CHECKING:
    from collections.abc import Sequence


@as_written
def reduce_scatter(value: Any, op: str = "sum") -> Any:
    """Reduces a value over replicas and gives each replica its part of the rows.

    ``all_gather`` of the results is the ``all_reduce`` of the values. Replicas of one
    program send each other parts only. Between worker processes TensorFlow's rings
    reduce whole tensors, so there as many bytes are sent as by ``all_reduce``.

    Args:
      value: A nest of dense tensors of the same structure and shapes on every replica,
        whose first dimension is a multiple of the number of replicas in sync.
      op: ``sum``, ``mean``, ``min`` or ``max``, of the types that ``all_reduce`` takes.

    Returns:
      A nest of the same structure: rows ``r * k`` to ``(r + 1) * k`` of the reduced
      tensors on replica r, if each replica gets k rows.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Rows that cannot be divided equally, a leaf is ``tf.IndexedSlices``,
        or ``op`` is unknown or not defined for a type.
    """
    context_lib.require("reduce_scatter")
    context_lib.check_reduce_op(op)
    return over_nest(ReduceScatter(op=op), value, "divides")


@as_written
def all_gather(value: Any) -> Any:
    """Stacks a value over replicas, in the order of ``replica_id``.

    Args:
      value: A nest of dense tensors of any type, with the same shapes on every replica.

    Returns:
      A nest of tensors of shape ``[num_replicas] + dims``, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: A leaf that is not a dense tensor.
      ValueError: A leaf is ``tf.IndexedSlices``.
    """
    return over_nest(AllGather(), value, "stacks")


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
    num_replicas = context_lib.require("permute").num_replicas_in_sync
    is_listed = isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and list(map(is_integer, pair)) == [True, True]
        for pair in pairs
    )
    if not is_listed:
        raise TypeError(
            f"permute takes pairs of source and target, such as [(0, 1), (1, 0)], but "
            f"got {format_value(pairs)}; both are Python ints, because the permutation "
            "is fixed when the step is traced"
        )
    for place, role in enumerate(("source", "target")):
        replicas = [pair[place] for pair in pairs]
        for replica in replicas:
            if not 0 <= replica < num_replicas:
                raise ValueError(
                    f"permute got {role} {format_value(replica)}, but there are "
                    f"{num_replicas} replicas; use 0 to {num_replicas - 1}"
                )
            if replicas.count(replica) > 1:
                raise ValueError(
                    f"permute got replica {replica} as the {role} of "
                    f"{replicas.count(replica)} pairs; a replica sends to at most one "
                    "and receives from at most one: use broadcast to send to several"
                )
    in_order = tuple(sorted((source, target) for source, target in pairs))
    return over_nest(Permute(pairs=in_order), value, "sends")


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
            f"source_replica_id {format_value(source_replica_id)} must be a Python "
            "int, because the source is fixed when the step is traced"
        )
    count = context.num_replicas_in_sync
    if not 0 <= source_replica_id < count:
        raise ValueError(
            f"source_replica_id {format_value(source_replica_id)} is out of range: "
            f"there are {count} replicas; use 0 to {count - 1}"
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
    sent = iter(communicate(context, kind, parts))
    received = [
        tf.IndexedSlices(next(sent), next(sent), leaf.dense_shape)
        if isinstance(leaf, tf.IndexedSlices)
        else next(sent)
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(value, received)


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
    return over_nest(AllToAll(), value, "divides")
