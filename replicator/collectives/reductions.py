"""Reductions over replicas that users call: dense and sparse, over nests."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator.collectives import differentiable, lookups
from replicator.collectives.differentiable import as_written, dense
from replicator.collectives.kinds import AllConcat, AllReduce
from replicator.collectives.lookups import Ids
from replicator.core import context as context_lib
from replicator.core.step import tensor_of
from replicator.core.validation import format_value
from replicator.errors import SplitBatchError
from replicator.inputs.context import InputContext, element_of, part_of_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.core.context import ReplicaContext


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
        to another in 16 bits; see ``differentiable.py``. Gradients of the collective
        are sent in full precision.

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
    kind = AllReduce(op=op, wire_dtype=differentiable.check_compression(compression))
    leaves = [
        leaf
        if isinstance(leaf, tf.IndexedSlices)
        else tensor_of(leaf, "all_reduce() takes a nest of dense tensors")
        for leaf in tf.nest.flatten(value)
    ]
    for leaf in leaves:
        differentiable.check_reducible(leaf, op, "all_reduce")
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
    """An ``all_reduce`` whose results count where a predicate is true; no gradient."""
    context = context_lib.require("all_reduce")
    return context.communicate(kind, tensors, needed_if=predicate)


def _all_reduce_dense(
    context: ReplicaContext, tensors: Sequence[tf.Tensor], kind: AllReduce
) -> list[tf.Tensor]:
    sent = [differentiable.widened(tensor, kind.op) for tensor in tensors]
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
    """Joins slices, whose numbers may differ: the sum of sparse tensors."""
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


class GlobalBatches(NamedTuple):
    dataset: tf.data.Dataset  # The examples.
    share: int  # Those of one replica in a whole global batch.


_GLOBAL_BATCHES: weakref.WeakKeyDictionary[tf.data.Dataset, GlobalBatches] = (
    weakref.WeakKeyDictionary()
)


def split_global_batches(
    dataset: tf.data.Dataset, ctx: InputContext, global_batch_size: int
) -> tf.data.Dataset:
    """Batches examples so that an epoch feeds each exactly once, on all replicas.

    Every step takes the next ``global_batch_size`` examples of ``dataset`` and splits
    them equally over the replicas. The remainder of the epoch becomes one smaller step:
    its parts differ by at most one example and may be empty, so every replica has the
    same number of steps. Compute the loss with ``mean_over_examples``, which weights
    the parts and is zero for an empty one.

    Each pipeline reads the whole dataset and keeps its part, as ``shard`` does; the
    dataset must yield the same order in all pipelines (give ``shuffle`` a seed).

    Args:
      dataset: Single examples, the same for every pipeline: do not ``shard`` it.
      ctx: The argument of the input function.
      global_batch_size: Examples per step over all replicas.

    Returns:
      A dataset of per-replica batches; the leading dimension is unknown.

    Raises:
      SplitBatchError: The global batch is not divisible by the replicas, or pipelines
        would each shuffle in an order of their own.
      TypeError: Not a dataset, or not an ``InputContext``.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"split_global_batches() takes a tf.data.Dataset of single examples, but "
            f"got {format_value(dataset)}; create one with "
            "tf.data.Dataset.from_tensor_slices"
        )
    if not isinstance(ctx, InputContext):
        raise TypeError(
            "split_global_batches() takes the InputContext that is the argument of the "
            f"input function, but got {format_value(ctx)}; write def input_fn(ctx): "
            "return split_global_batches(dataset, ctx, global_batch_size)"
        )
    share = ctx.get_per_replica_batch_size(global_batch_size)
    num_replicas = ctx.num_replicas_in_sync
    num_in_turn, rest = divmod(num_replicas, ctx.num_input_pipelines)
    if rest:
        raise SplitBatchError(
            f"{num_replicas} replicas are not divisible by "
            f"{ctx.num_input_pipelines} input pipelines; use the same number of "
            "replicas on every worker"
        )
    if ctx.num_input_pipelines > 1 and _tf_data.shuffles_at_random(dataset):
        raise SplitBatchError(
            f"{ctx.num_input_pipelines} input pipelines read a dataset that has a "
            "shuffle() without a seed, each in an order of its own, so that examples "
            "would be repeated and lost; write shuffle(..., seed=...)"
        )
    first = ctx.input_pipeline_id * num_in_turn

    def parts(*arguments: Any) -> tf.data.Dataset:
        nest = element_of(arguments, dataset)
        return tf.data.Dataset.range(first, first + num_in_turn).map(
            lambda replica_id: part_of_batch(nest, replica_id, num_replicas)
        )

    divided = dataset.batch(share * num_replicas).flat_map(parts)
    _GLOBAL_BATCHES[divided] = GlobalBatches(dataset=dataset, share=share)
    return divided


def global_batches_of(dataset: tf.data.Dataset) -> GlobalBatches | None:
    """What a dataset divides, if it is the result of ``split_global_batches``."""
    return _GLOBAL_BATCHES.get(dataset)


def mean_over_examples(values: Any) -> tf.Tensor:
    """Averages per-example values so that replicas are weighted by their examples.

    Returns ``sum(values) * R / N`` with N examples on all R replicas: its mean over
    replicas (``reduce("mean")``, and the average of gradients in ``wrap_optimizer``)
    is the mean over all examples of the step, however many each replica has. With
    equal batches it equals ``tf.reduce_mean``. A plain ``tf.reduce_mean`` in a step
    weights every replica equally, and is NaN on a replica without examples.

    Call it in replica context.

    Args:
      values: One value per example, of a floating type and shape ``[examples]``.

    Returns:
      A scalar of the type of ``values``.

    Raises:
      CollectiveContextError: Called outside a step function.
      TypeError: Not a dense tensor.
      ValueError: Not a vector of a floating type.
    """
    replica = context_lib.require("mean_over_examples")
    values = tensor_of(
        values, "mean_over_examples() takes a tensor of one value per example"
    )
    if values.shape.rank != 1 or not values.dtype.is_floating:
        raise ValueError(
            f"mean_over_examples needs one floating value per example, shape "
            f"[examples], but got {values.dtype.name} of shape {values.shape}; use an "
            "unreduced loss (reduction=None)"
        )
    total = examples_of_all(tf.size(values), _wide(values.dtype))
    # The mean of a step without examples on any replica is 0 rather than NaN.
    weight = tf.math.divide_no_nan(
        tf.cast(replica.num_replicas_in_sync, total.dtype), total
    )
    summed = tf.reduce_sum(differentiable.widened(values, "mean"))
    return tf.cast(summed * tf.cast(weight, summed.dtype), values.dtype)


def examples_of_all(num_examples: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Counts the examples of this step on all replicas."""
    return tf.stop_gradient(all_sum(tf.cast(num_examples, dtype)))


def _wide(dtype: tf.DType) -> tf.DType:
    """In which a weight of values of a type is computed."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def all_concat(value: Any, axis: int = 0) -> Any:
    """Joins a nest over all replicas along a dimension, in order of ``replica_id``."""
    context = context_lib.require("all_gather")
    tensors = dense(value, "all_gather", "joins")
    joined = []
    for tensor in tensors:  # sizes may differ between the tensors of a nest, too
        rank = tensor.shape.rank
        if rank is None or not -rank <= axis < rank:
            raise ValueError(
                f"all_gather along axis {axis!r} of a tensor of shape {tensor.shape}: "
                "there is no such dimension; use replicator.all_gather(value), which "
                "stacks the values of all replicas"
            )
        swapped = [axis % rank, *(d for d in range(rank) if d != axis % rank)]
        in_front = tensor if swapped[0] == 0 else tf.transpose(tensor, swapped)
        (rows,) = differentiable.communicate(context, AllConcat(), [in_front])
        back = [swapped.index(d) for d in range(rank)]
        joined.append(rows if swapped[0] == 0 else tf.transpose(rows, back))
    return tf.nest.pack_sequence_as(value, joined)
