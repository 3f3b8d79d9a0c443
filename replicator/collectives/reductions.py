"""Reductions over replicas that users call: dense and sparse, over nests."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import compression as compression_lib
from replicator.collectives import differentiable, lookups, reducible
from replicator.collectives.kinds.all_concat import AllConcat
from replicator.collectives.kinds.all_reduce import AllReduce
from replicator.collectives.lookups import Ids
from replicator.collectives.nests import as_written
from replicator.step import context as context_lib
from replicator.step.values import tensor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.step.context import ReplicaContext


@as_written
def all_reduce(value: Any, op: str = "sum", *, compression: str | None = None) -> Any:
    """Reduces a value over all replicas.

    Args:
      value: A nest of tensors of the same structure and shapes on every replica;
        ``tf.IndexedSlices`` leaves stay sparse with ``sum`` and ``mean``, and may
        have different numbers of rows on every replica. Rows of all replicas are
        joined, but for those whose indices do not depend on examples, such as
        positions: they are reduced one by one. All numeric types are
        supported; integer sums wrap around as in TensorFlow; bool is supported with
        ``min`` (all) and ``max`` (any).
      op: ``sum``, ``mean``, ``min`` or ``max``.
      compression: ``bfloat16`` or ``float16`` sends float32 and float64 from one memory
        to another in 16 bits; see ``compression.py``. Gradients of the collective are
        sent in full precision.

    Returns:
      A nest of the same structure and shapes, identical on all replicas.

    Raises:
      CollectiveContextError: Called outside a step function.
      OptimizerOptionError: Unknown ``compression``.
      TypeError: A leaf that is not a dense tensor.
      ValueError: Unknown ``op``, the mean of integers, the minimum of complex numbers,
        or a type that is not a number.
    """
    context = context_lib.require("all_reduce")
    context_lib.check_reduce_op(op)
    kind = AllReduce(op=op, wire_dtype=compression_lib.check(compression))
    leaves = [
        leaf
        if isinstance(leaf, tf.IndexedSlices)
        else tensor_of(leaf, "all_reduce() takes a nest of dense tensors")
        for leaf in tf.nest.flatten(value)
    ]
    for leaf in leaves:
        reducible.check(leaf, op, "all_reduce")
    parts = [
        _lookups_of(context, leaf, kind)
        if isinstance(leaf, tf.IndexedSlices)
        else [(leaf, Ids.SAME)]
        for leaf in leaves
    ]
    dense = [
        part.values if isinstance(part, tf.IndexedSlices) else part
        for of_leaf in parts
        for part, ids in of_leaf
        if ids is Ids.SAME
    ]
    reduced = iter(_all_reduce_dense(context, dense, kind))
    merged = []
    for leaf, of_leaf in zip(leaves, parts, strict=True):
        if not isinstance(leaf, tf.IndexedSlices):
            merged.append(next(reduced))
            continue
        merged.append(
            _concat(
                [
                    tf.IndexedSlices(next(reduced), part.indices)
                    if ids is Ids.SAME
                    else _all_reduce_sparse(context, part, kind, ids)
                    for part, ids in of_leaf
                ],
                leaf.dense_shape,
            )
        )
    return tf.nest.pack_sequence_as(value, merged)


def all_sum(value: Any) -> Any:
    """Sums a nest over all replicas; see ``all_reduce``."""
    return all_reduce(value, "sum")


def all_mean(value: Any) -> Any:
    """Averages a nest over all replicas (sum / num_replicas); see ``all_reduce``."""
    return all_reduce(value, "mean")


def all_min(value: Any) -> Any:
    """Takes the elementwise minimum over all replicas; see ``all_reduce``."""
    return all_reduce(value, "min")


def all_max(value: Any) -> Any:
    """Takes the elementwise maximum over all replicas; see ``all_reduce``."""
    return all_reduce(value, "max")


def all_reduce_if(
    predicate: tf.Tensor, tensors: Sequence[tf.Tensor], kind: AllReduce
) -> list[tf.Tensor]:
    """An ``all_reduce`` of tensors whose results are used only if a predicate is true.

    It has no gradient.
    """
    context = context_lib.require("all_reduce")
    return context.communicate(kind, tensors, needed_if=predicate)


def _all_reduce_dense(
    context: ReplicaContext, tensors: Sequence[tf.Tensor], kind: AllReduce
) -> list[tf.Tensor]:
    sent = [tf.cast(t, reducible.stand_in(t.dtype, kind.op)) for t in tensors]
    # float16 has 16 bits already; what averages it in float32 is not narrowed again.
    whole = dataclasses.replace(kind, wire_dtype=None)
    kinds = [whole if tensor.dtype == tf.float16 else kind for tensor in tensors]
    results: list[Any] = [None] * len(sent)
    for one in dict.fromkeys(kinds):
        places = [place for place, other in enumerate(kinds) if other == one]
        reduced = differentiable.communicate(context, one, [sent[p] for p in places])
        for place, result in zip(places, reduced, strict=True):
            results[place] = tf.cast(result, tensors[place].dtype)
    return results


def _lookups_of(
    context: ReplicaContext, slices: tf.IndexedSlices, kind: AllReduce
) -> list[tuple[tf.IndexedSlices, Ids]]:
    if kind.op not in ("sum", "mean"):
        raise ValueError(
            "all_reduce of tf.IndexedSlices supports 'sum' and 'mean', but not "
            f"{kind.op!r}; use tf.convert_to_tensor on the slices first"
        )
    if context.num_replicas_in_sync == 1:
        return [(slices, Ids.OF_EXAMPLES)]
    return lookups.split(context, slices)


def _all_reduce_sparse(
    context: ReplicaContext, slices: tf.IndexedSlices, kind: AllReduce, ids: Ids
) -> tf.IndexedSlices:
    """Concatenates the slices of all replicas: the sum of sparse tensors.

    The number of slices may differ between replicas, as with batches of mixed lengths.
    """
    dtype = slices.values.dtype
    narrow = tf.cast(slices.values, kind.sent_dtype(dtype))
    values, indices = differentiable.communicate(
        context, AllConcat(), [narrow, slices.indices]
    )
    values = tf.cast(values, dtype)
    if kind.op == "mean":
        values /= tf.cast(context.num_replicas_in_sync, values.dtype)
    joined = tf.IndexedSlices(values, indices, slices.dense_shape)
    return joined if ids is Ids.OF_EXAMPLES else lookups.fold(context, joined, slices)


def _concat(
    parts: Sequence[tf.IndexedSlices], dense_shape: tf.Tensor | None
) -> tf.IndexedSlices:
    values, indices = [p.values for p in parts], [p.indices for p in parts]
    if len(parts) == 1:
        return tf.IndexedSlices(values[0], indices[0], dense_shape)
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), dense_shape)
