"""Collectives in vectorized loops: tf.vectorized_map, tape.jacobian, batch_jacobian.

TensorFlow traces the body of such a loop once and then replaces each node by one that
works on all iterations. The marker of a collective is replaced by a collective of the
stacked operands, so n iterations communicate once. It has a gradient as well.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from replicator._tf import gradients as _tf_gradients
from replicator.collectives import differentiable
from replicator.step import context


@functools.cache
def register() -> None:
    """Enables collectives in vectorized loops; backends call it before a trace."""
    _tf_gradients.vectorize_markers(_convert)


def _convert(marker: str, stacked: tf.Tensor) -> tf.Tensor:
    """Emits the collective of all iterations; see ``vectorize_markers``."""
    if not context.in_replica_context():
        return stacked  # a placeholder of another graph
    current = context.get_replica_context()
    call = current.collective_of(marker)
    if call is None:
        return stacked
    if call.kind == "all_reduce":
        (result,) = differentiable.all_reduce(
            current, [stacked], call.op, call.wire_dtype
        )
    elif call.kind == "broadcast":
        (result,) = differentiable.broadcast(current, [stacked], call.source_replica_id)
    elif call.kind == "all_gather":
        # The marker's input is the operand once per replica.
        (gathered,) = differentiable.all_gather(current, [stacked[:, 0]])
        result = _swap(gathered)
    else:
        # Its own rows, as often as there are replicas.
        num_rows = tf.shape(stacked)[1] // current.num_replicas_in_sync
        own = _swap(stacked[:, :num_rows])
        (joined,) = differentiable.all_concat(current, [own])
        result = _swap(joined)
    return result


def _swap(tensor: tf.Tensor) -> tf.Tensor:
    """Swaps the first two dimensions."""
    rest = tf.range(2, tf.rank(tensor))
    return tf.transpose(tensor, tf.concat([[1, 0], rest], axis=0))
