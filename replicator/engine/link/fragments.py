"""Fragments: small TensorFlow functions whose nodes become a part of a linked graph.

They are what a transfer needs where the trace does not know a shape, so that most steps
have none. Collective ops are not among them: these need an order, and keys.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.core.devices import cpu_of
from replicator.core.step import traced_once
from replicator.engine.graph.body import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine.graph.body import Emitter, Tensor

# Says in the error of TensorFlow that it is about shapes; the rest is made from it.
SHAPES_DIFFER = "replicator: shapes differ between workers"


@functools.cache
def _traced(
    function: Callable[..., Any],
    dtypes: tuple[tf.DType, ...],
    options: tuple[tuple[str, Any], ...],
) -> Any:
    def fragment(*values: tf.Tensor) -> Any:
        return function(*values, **dict(options))

    with tf.init_scope():
        specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]
        return traced_once(fragment).get_concrete_function(*specs).function_def


def inline(
    emit: Emitter,
    name: str,
    function: Callable[..., Any],
    inputs: Sequence[tuple[Tensor, tf.DType]],
    device: str,
    **options: Any,
) -> tuple[list[Ref], list[str]]:
    """Emits the nodes of a function of tensors; its results, and its assertions.

    They are on a device, unless the function says where.
    """
    dtypes = tuple(dtype for _, dtype in inputs)
    traced = _traced(function, dtypes, tuple(options.items()))
    arguments = {
        argument.name: str(ref)
        for argument, (ref, _) in zip(traced.signature.input_arg, inputs, strict=True)
    }

    def moved(ref: str) -> str:
        is_control = ref.startswith("^")
        inner = f"^{name}/{ref[1:]}" if is_control else f"{name}/{ref}"
        return arguments.get(ref, inner)

    for node in traced.node_def:
        copy = _tf_compat.NodeDef()
        copy.CopyFrom(node)
        copy.name, copy.device = f"{name}/{node.name}", node.device or device
        copy.input[:] = map(moved, node.input)
        emit.nodes.append(copy)
    returned = (traced.ret[output.name] for output in traced.signature.output_arg)
    parts = (moved(ref).partition(":") for ref in returned)
    refs = [Ref(node=node, port=port) for node, _, port in parts]
    return refs, [f"{name}/{node}" for node in traced.control_ret.values()]


# TensorFlow fixes the shape of a collective instance at its first use and rejects all
# others, and it may crash on a tensor without elements. So a tensor without a static
# shape is sent as a vector whose length is a power of two, and each length is a
# separate instance. At most twice as many bytes are sent, and a program has at most 32
# instances per transfer, however many sizes occur.

# 2^0 to 2^30, and nothing beyond: sizes are int32 here.
NUM_LENGTHS = 31


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """A tensor on its way."""

    value: Ref  # Its elements and padding, a vector.
    key_offset: Ref  # Which of the ``NUM_LENGTHS`` instances of the transfer takes it.
    num_elements: Ref  # How many elements it has, a vector of one number.


def pad_any_size(
    emit: Emitter, name: str, ref: Tensor, dtype: tf.DType, device: str
) -> Padded:
    """Emits the vector that is sent for a tensor of any size."""
    inputs, cpu = [(ref, dtype)], cpu_of(device)
    (value, key_offset, size), _ = inline(emit, name, _padded, inputs, device, cpu=cpu)
    return Padded(value=value, key_offset=key_offset, num_elements=size)


def _padded(value: tf.Tensor, *, cpu: str) -> list[tf.Tensor]:
    size = tf.size(value)
    with tf.device(cpu):
        lengths = tf.constant(2 ** np.arange(NUM_LENGTHS, dtype=np.int32))
        # The first length that is not shorter.
        key_offset = tf.reduce_sum(tf.cast(lengths < size, tf.int32), 0)
        paddings = tf.convert_to_tensor([[0, lengths[key_offset] - size]])
    vector = tf.pad(tf.reshape(value, [-1]), paddings)
    return [vector, key_offset, tf.reshape(size, [1])]


def unpadded(received: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """What was padded on its way, in the shape that it has on all workers."""
    return tf.reshape(received[: tf.size(like)], tf.shape(like))


def unpadded_parts(rows: tf.Tensor, like: tf.Tensor, *, count: int) -> tf.Tensor:
    """The same of a row for each worker, joined along the first dimension."""
    dims = tf.shape(like)
    joined = tf.concat([dims[:1] * count, dims[1:]], 0)
    return tf.reshape(rows[:, : tf.size(like)], joined)


def in_order(parts: tf.Tensor, *, places: tuple[int, ...]) -> tf.Tensor:
    """Parts of workers, by the place of each."""
    pieces = tf.split(parts, len(places))
    return tf.concat([pieces[place] for place in places], 0)


def signed(value: tf.Tensor) -> tf.Tensor:
    """Numbers of int64 in the order of those of uint64: the highest bit is flipped."""
    return tf.bitwise.bitwise_xor(tf.bitcast(value, tf.int64), tf.int64.min)


def unsigned(value: tf.Tensor) -> tf.Tensor:
    """Undoes ``signed``."""
    return tf.bitcast(tf.bitwise.bitwise_xor(value, tf.int64.min), tf.uint64)


def num_rows(value: tf.Tensor) -> tf.Tensor:
    """The first dimension, a vector of one number."""
    return tf.shape(value)[:1]


def pad_rows(value: tf.Tensor, counts: tf.Tensor, *, rank: int) -> tf.Tensor:
    """As many rows as the worker that has most of them."""
    missing = tf.reduce_max(counts, 0) - tf.shape(value)[0]
    return tf.pad(value, [[0, missing], *([[0, 0]] * (rank - 1))])


def cut_rows(padded: tf.Tensor, counts: tf.Tensor, *, num_workers: int) -> tf.Tensor:
    """The rows of all workers without padding, by worker."""
    most = tf.reduce_max(counts, 0)
    firsts = [worker * most for worker in range(num_workers)]
    ends = [first + counts[worker] for worker, first in enumerate(firsts)]
    parts = [padded[first:end] for first, end in zip(firsts, ends, strict=True)]
    return tf.concat(parts, 0)


def shape_row(value: tf.Tensor) -> tf.Tensor:
    """What workers compare: the dimensions of a tensor, and one number more."""
    # So that a scalar has something to compare as well.
    return tf.concat([tf.shape(value, tf.int64), [1]], 0)


def check_rows(rows: tf.Tensor, own: tf.Tensor) -> list[tf.Tensor]:
    """Raises an error where the shapes of workers differ."""
    is_same = tf.reduce_all(tf.equal(rows, own), [0, 1])
    tf.raw_ops.Assert(condition=is_same, data=[SHAPES_DIFFER, rows], summarize=256)
    return []


def check_alike(*values: tf.Tensor, what: str, devices: tuple[str, ...]) -> tf.Tensor:
    """The first of the tensors of replicas, which must have one shape."""
    cpu = cpu_of(devices[0])
    texts = []
    for value, device in zip(values, devices, strict=True):
        with tf.device(device):
            dims = tf.shape(value)
        with tf.device(cpu):
            texts.append(tf.strings.format("{}", dims, summarize=-1))
    text = (
        f"replicator: {what} got tensors of different shapes on different replicas; "
        "pad them to one shape, or reduce them first; by replica"
    )
    with tf.device(cpu):
        shapes = tf.stack(texts)
        is_same = tf.reduce_all(tf.equal(shapes, texts[0]), 0)
        check = tf.raw_ops.Assert(condition=is_same, data=[text, shapes], summarize=256)
    with tf.control_dependencies([check]):
        return tf.identity(values[0])
