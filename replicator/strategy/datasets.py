"""Distributed datasets: ``tf.data`` whose elements have a part for every replica.

They are ordinary datasets, so their iterators can be read in a ``tf.function``, as
optionals, and can be saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator._tf.distribute import PerReplica
from replicator.core.validation import format_value
from replicator.errors import StrategyError
from replicator.inputs.batches import element_of, part_of_batch, without_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def is_per_replica(value: Any) -> bool:
    return isinstance(value, tf.distribute.DistributedValues)


def local_values(value: Any, num_local: int) -> tuple[Any, ...]:
    """One value per local replica; what is not per replica is the same on all."""
    if is_per_replica(value):
        return tuple(value.values)
    return (value,) * num_local


def grouped(values: Sequence[Any]) -> Any:
    """One value of ``tf.distribute``; of one replica, that value itself."""
    return values[0] if len(values) == 1 else PerReplica(tuple(values))


def batch_of(values: Sequence[Any], num_replicas: int) -> Any:
    """The parts of a batch as one value; of one replica in all, that part itself."""
    return values[0] if num_replicas == 1 else PerReplica(tuple(values))


# Attribute of a dataset whose elements have parts.
_IS_DISTRIBUTED = "_replicator_is_distributed"


def split(dataset: Any, repl: Any) -> tf.data.Dataset:
    """Splits batches over all replicas, and keeps the parts of those of a process."""
    if getattr(dataset, _IS_DISTRIBUTED, False):
        return dataset
    if not isinstance(dataset, tf.data.Dataset):
        raise StrategyError(
            "experimental_distribute_dataset() takes a tf.data.Dataset of global "
            f"batches, but got {format_value(dataset)}; write "
            "tf.data.Dataset.from_tensor_slices(arrays).batch(global_batch_size)"
        )
    for spec in tf.nest.flatten(dataset.element_spec):
        if _tf_data.is_none(spec):
            continue
        if not hasattr(spec, "shape"):
            raise StrategyError(
                f"the dataset yields {spec}, which has no examples that replicas could "
                "share; map it to a tensor with a row for each example"
            )
        if spec.shape.rank == 0:
            raise StrategyError(
                f"the dataset yields scalars, {dataset.element_spec}, but its elements "
                "are split over replicas; write dataset.batch(global_batch_size), or "
                "strategy.distribute_datasets_from_function(fn), whose elements are "
                "batches of one replica"
            )

    def parts(*arguments: Any) -> Any:
        return parts_of(element_of(arguments, dataset), repl)

    return _distributed(dataset.map(parts), dataset)


@tf.autograph.experimental.do_not_convert  # which would rewrite its loops
def parts_of(batch: Any, repl: Any) -> Any:
    """The parts of a global batch: tensors with the same number of rows, or None."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if hasattr(leaf, "shape")]
    first, count = repl.first_replica_id, repl.num_replicas
    parts = [
        part_of_batch(leaves, replica, count)
        for replica in range(first, first + repl.num_local_replicas)
    ]
    rest = iter([batch_of(values, count) for values in zip(*parts, strict=True)])
    return tf.nest.map_structure(
        lambda leaf: next(rest) if hasattr(leaf, "shape") else None, batch
    )


def take_turns(
    dataset_fn: Callable[[tf.distribute.InputContext], Any], repl: Any
) -> tf.data.Dataset:
    """Gives each replica of this process one element of a pipeline in turn."""
    dataset = dataset_fn(
        tf.distribute.InputContext(
            num_input_pipelines=repl.num_programs,
            input_pipeline_id=repl.worker_id if repl.num_programs > 1 else 0,
            num_replicas_in_sync=repl.num_replicas_in_sync,
        )
    )
    if not isinstance(dataset, tf.data.Dataset):
        raise StrategyError(
            "distribute_datasets_from_function() takes a function that returns a "
            f"tf.data.Dataset, but it returned {format_value(dataset)}; write def "
            "dataset_fn(ctx): return dataset.batch("
            "ctx.get_per_replica_batch_size(global_batch_size))"
        )
    count, num_local = repl.num_replicas_in_sync, repl.num_local_replicas
    if count == 1:
        return _distributed(dataset.with_options(tf.data.Options()), dataset)
    spec = dataset.element_spec
    has_any_size = all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[0] is None
        for leaf in tf.nest.flatten(spec)
    )

    @tf.autograph.experimental.do_not_convert
    def turn(*windows: Any) -> Any:
        window = tf.data.Dataset.zip(element_of(windows, dataset))
        if has_any_size:
            empty = tf.nest.map_structure(without_rows, spec)
            none = tf.data.Dataset.from_tensors(empty).repeat(num_local)
            window = window.concatenate(none)
        elements = [
            window.skip(replica).take(1).get_single_element()
            for replica in range(num_local)
        ]
        return tf.nest.map_structure(lambda *values: batch_of(values, count), *elements)

    windows = dataset.window(num_local, drop_remainder=not has_any_size)
    return _distributed(windows.map(turn), dataset)


def _distributed(dataset: tf.data.Dataset, source: tf.data.Dataset) -> tf.data.Dataset:
    """Reads as much of the source ahead of a step as without a strategy."""
    if _tf_data.is_read_ahead(source):
        dataset = dataset.prefetch(1)
    result = _tf_data.without_autotune(dataset)
    setattr(result, _IS_DISTRIBUTED, True)
    return result
