"""Collectives in vectorized loops: tf.vectorized_map, tape.jacobian, batch_jacobian.

TensorFlow traces the body of such a loop once and then replaces each node by one that
works on all iterations. The marker of a collective is replaced by a collective of the
stacked operands, so n iterations communicate once; where the operand is the same in all
iterations, by one of it alone. It has a gradient as well.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from replicator._tf import gradients as _tf_gradients
from replicator.collectives import differentiable
from replicator.step import context

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf


@functools.cache
def register() -> None:
    """Enables collectives in vectorized loops; backends call it before a trace."""
    _tf_gradients.vectorize_markers(_convert)


def _convert(
    marker: str, converted: Callable[[str], tuple[tf.Tensor, bool]]
) -> tuple[tf.Tensor, bool] | None:
    """Emits the collective of all iterations; see ``vectorize_markers``."""
    if not context.in_replica_context():
        return None  # a placeholder of another graph
    current = context.get_replica_context()
    call = current.collective_of(marker)
    if call is None:
        return None
    operand, is_stacked = converted(call.operands[call.markers.index(marker)])
    if is_stacked:
        return call.kind.vectorized(current, operand), True
    return differentiable.communicate(current, call.kind, [operand])[0], False
