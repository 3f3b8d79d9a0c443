"""Uneven batches: epochs whose last global batch is smaller than the others."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator.collectives import reducible, reductions
from replicator.errors import SplitBatchError
from replicator.inputs.batch_rows import element_of, part
from replicator.inputs.context import InputContext
from replicator.step import context as context_lib
from replicator.step.values import tensor_of
from replicator.validation.arguments import shown


class GlobalBatches(NamedTuple):
    """What ``split_global_batches`` divides."""

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
            f"got {shown(dataset)}; create one with tf.data.Dataset.from_tensor_slices"
        )
    if not isinstance(ctx, InputContext):
        raise TypeError(
            "split_global_batches() takes the InputContext that is the argument of the "
            f"input function, but got {shown(ctx)}; write def input_fn(ctx): return "
            "split_global_batches(dataset, ctx, global_batch_size)"
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
            lambda replica_id: part(nest, replica_id, num_replicas)
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
    summed = tf.reduce_sum(tf.cast(values, reducible.stand_in(values.dtype, "mean")))
    return tf.cast(summed * tf.cast(weight, summed.dtype), values.dtype)


def examples_of_all(num_examples: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Counts the examples of this step on all replicas."""
    return tf.stop_gradient(reductions.all_sum(tf.cast(num_examples, dtype)))


def _wide(dtype: tf.DType) -> tf.DType:
    """In which a weight of values of a type is computed."""
    return tf.float64 if dtype == tf.float64 else tf.float32
