"""Private names of ``tf.data``: its iterators, pipelines and device buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.ops import (
    dataset_ops,
    multi_device_iterator_ops,
    shuffle_op,
)
from tensorflow.python.framework import none_tensor

from replicator._tf import compat

_SHUFFLES = ("ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3")
# Messages with the state of an iterator: the fewest parts of one, and about its bytes.
_AT_ONCE, _MESSAGE_BYTES = 4, 2**24
_PYTHON_OPS = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns tuning off where the options leave it open (test_inputs)."""
    # An iterator that is tuned waits, when it is freed, for a thread that sleeps as
    # long as the iterator has lived, up to a minute, and Python stands still meanwhile.
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def is_none(spec: Any) -> bool:
    """Whether components of a type are ``None``, also as of Keras (test_sources)."""
    # Its generators have empty optionals in the place of ``None``.
    if isinstance(spec, tf.OptionalSpec):
        return spec._element_spec is None  # noqa: SLF001
    return isinstance(spec, none_tensor.NoneTensorSpec)


def is_read_ahead(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow itself prefetches what a pipeline yields (test_sources)."""
    # It does so where it tunes a pipeline whose last transformation has no thread.
    options = dataset.options()
    settings = options.experimental_optimization
    if False in (
        options.autotune.enabled,
        settings.apply_default_optimizations,
        settings.inject_prefetch,
    ):
        return False
    while isinstance(dataset, dataset_ops._OptionsDataset):  # noqa: SLF001
        (dataset,) = dataset._inputs()  # noqa: SLF001
    return not type(dataset).__name__.startswith(("_Prefetch", "_Parallel"))


def untuned_device_buffers() -> compat.Scope:
    """Keeps buffers on devices from being tuned (test_inputs)."""
    # They are pipelines per device, on which the user's options have no effect.

    def make(original: Any, *args: Any, **options: Any) -> tf.data.Dataset:
        return without_autotune(original(*args, **options))

    return compat.replaced(
        multi_device_iterator_ops, "_create_device_dataset", make, in_all_graphs=True
    )


def device_iterators(
    dataset: tf.data.Dataset, devices: Sequence[str], source: str, num_batches: int
) -> list[Any]:
    """Deals elements to devices in turn, a few ahead of them (test_inputs)."""
    # What ``tf.distribute`` feeds its replicas with.
    with untuned_device_buffers():
        distributed = multi_device_iterator_ops.OwnedMultiDeviceIterator(
            dataset,
            list(devices),
            max_buffer_size=num_batches,
            prefetch_buffer_size=num_batches,
            source_device=source,
        )
    return list(distributed._device_iterators)  # noqa: SLF001


def serialize_iterator(iterator: Any) -> list[bytes]:
    """The state of a ``tf.data`` iterator (test_input_position)."""
    fail = tf.data.experimental.ExternalStatePolicy.FAIL
    state = tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource,  # noqa: SLF001
        external_state_policy=fail.value,
    )
    # As many at a time as are small: a message of all can pass the limit of 2 GB.
    messages: list[bytes] = []
    begin, size = 0, _AT_ONCE
    while begin < state.shape[0]:
        messages.append(tf.io.serialize_tensor(state[begin : begin + size]).numpy())
        begin += size
        fitting = size * _MESSAGE_BYTES // len(messages[-1])
        size = max(_AT_ONCE, min(2 * size, fitting))
    return messages


def deserialize_iterator(iterator: Any, parts: Sequence[bytes]) -> None:
    """Puts an iterator of an equal dataset where another was (test_input_position)."""
    # Older checkpoints have each by itself, as a scalar.
    read = (tf.reshape(tf.io.parse_tensor(part, tf.variant), [-1]) for part in parts)
    tf.raw_ops.DeserializeIterator(
        resource_handle=iterator._iterator_resource,  # noqa: SLF001
        serialized=tf.stack([each for few in read for each in tf.unstack(few)]),
    )


def python_ops(dataset: tf.data.Dataset) -> list[str]:
    """Names of the ops of a pipeline that call Python (test_remote_replicas)."""
    return [n.name for nodes in _graphs(dataset) for n in nodes if n.op in _PYTHON_OPS]


def shuffles_at_random(dataset: tf.data.Dataset) -> bool:
    """Whether a pipeline shuffles in an order of its own each time (test_inputs)."""
    # TensorFlow draws a seed where both of a shuffle's seeds are zero.
    is_unseeded = any(map(_has_unseeded_shuffle, _graphs(dataset)))
    return is_unseeded or (0, 0) in _shuffle_seeds(dataset)


def shuffle_apart(datasets: Sequence[tf.data.Dataset]) -> bool:
    """Whether some of these pipelines shuffle in another order (test_audit)."""
    seeds = set(map(_shuffle_seeds, datasets))
    return len(seeds) > 1 or any(map(shuffles_at_random, datasets))


def _shuffle_seeds(dataset: tf.data.Dataset) -> tuple[tuple[Any, Any], ...]:
    # While a pipeline is traced, only constants are known: those of no seed.
    value = tf.get_static_value
    return tuple(
        (value(part._seed), value(part._seed2))  # noqa: SLF001
        for part in _parts(dataset)
        if isinstance(part, shuffle_op._ShuffleDataset)  # noqa: SLF001
    )


def _has_unseeded_shuffle(nodes: Sequence[Any]) -> bool:
    values = {
        node.name: tf.make_ndarray(node.attr["value"].tensor).tolist()
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == tf.int64.as_datatype_enum
    }
    return any(
        not any(values.get(i.partition(":")[0], 1) for i in node.input[2:4])
        for node in nodes
        if node.op in _SHUFFLES
    )


def _parts(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A dataset and all that it is made from."""
    return compat.reachable([dataset], lambda part: part._inputs())  # noqa: SLF001


def _graphs(dataset: tf.data.Dataset) -> Iterator[Sequence[Any]]:
    """The nodes of each function of a pipeline, and of those that it calls."""
    for part in _parts(dataset):
        for wrapped in part._functions():  # noqa: SLF001
            graph_def = wrapped.function.graph.as_graph_def()
            yield graph_def.node
            yield from (function.node_def for function in graph_def.library.function)


class Transformation(NamedTuple):
    """The last operation of a pipeline."""

    name: str  # Such as ``Batch``, of which there may be several implementations.
    inputs: tuple[tf.data.Dataset, ...]  # The pipelines that it reads.
    num_joined: int | None  # Elements that it joins, if it is a batch.


def last_transformation(dataset: tf.data.Dataset) -> Transformation:
    """What a pipeline does last (test_input_position)."""
    name = type(dataset).__name__.strip("_").removesuffix("Dataset")
    size = tf.get_static_value(getattr(dataset, "_batch_size", None))
    return Transformation(
        name=name.removeprefix("Parallel").removeprefix("Padded"),
        inputs=tuple(dataset._inputs()),  # noqa: SLF001
        num_joined=None if size is None else int(size),
    )


def cardinality(dataset: tf.data.Dataset) -> int:
    """Elements of a dataset, maybe on another worker (test_remote_replicas)."""
    with tf.device(dataset._variant_tensor.device):  # noqa: SLF001
        return int(dataset.cardinality())
