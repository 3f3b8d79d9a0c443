"""Losses of Keras that average over what a mask, or sample weights, leave valid.

``keras.src.losses.loss.reduce_weighted_values`` divides by what is valid in the tensors
that it gets: in one micro-batch. While a stage is traced it divides by the size
instead, which is equal for all micro-batches, and the share of what is valid is noted,
so that both can be summed apart.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf.compat import depends_on

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEANS = ("mean", "sum_over_batch_size")
_WEIGHTED = "mean_with_sample_weight"
# Of a tensor times what no example changes.
_LINEAR = frozenset({"AddN", "Cast", "Identity", "Mul", "Neg", "RealDiv"})
_ACTIVE: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "replicator_stage_losses", default=None
)


@contextlib.contextmanager
def noted() -> Iterator[list[tuple[tf.Tensor, tf.Tensor]]]:
    """Notes numerators and denominators in this thread (test_kept_by_keras)."""
    _replace_reduction()
    found: list[tuple[tf.Tensor, tf.Tensor]] = []
    token = _ACTIVE.set(found)
    try:
        yield found
    finally:
        _ACTIVE.reset(token)


def is_multiple(loss: tf.Tensor, part: tf.Tensor) -> bool:
    """Whether a loss is a part of it times a factor that no example changes."""
    captured = {id(inner) for _, inner in loss.graph.captures}
    given = {x.op for x in loss.graph.inputs if id(x) not in captured}
    while loss is not part:
        if loss.op.type not in _LINEAR or not loss.op.inputs:
            return False
        first, *others = loss.op.inputs
        if others and loss.op.type == "Mul" and not depends_on(first, {part.op}):
            first, others = others[0], [first]
        if loss.op.type == "AddN" and others:
            return False
        if any(depends_on(other, given) for other in others):
            return False
        loss = first
    return True


@functools.cache  # once per process: what is replaced answers as before elsewhere
def _replace_reduction() -> None:
    from keras.src.losses import loss as losses

    of_keras = losses.reduce_weighted_values

    @functools.wraps(of_keras)
    def reduce(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        active = _ACTIVE.get()
        values = tf.convert_to_tensor(values)
        is_weighted = reduction == _WEIGHTED and (
            sample_weight is not None or mask is not None
        )
        is_masked = reduction in _MEANS and mask is not None
        if active is None or values.shape.rank == 0 or not (is_weighted or is_masked):
            return of_keras(values, sample_weight, mask, reduction, dtype)
        values = tf.cast(values, dtype or values.dtype)
        if mask is not None:
            mask = tf.cast(mask, values.dtype)
        if sample_weight is not None:
            sample_weight = tf.cast(sample_weight, values.dtype)
        weights = losses.apply_mask(sample_weight, mask, values.dtype, "sum")
        of_size = of_keras(values, weights, None, "sum_over_batch_size", dtype)
        if is_masked:
            share = tf.reduce_mean(mask)
        else:
            size = tf.cast(tf.size(values), values.dtype)
            _, weights = losses.squeeze_or_expand_to_same_rank(values, weights)
            share = tf.reduce_sum(weights) / size
        active.append((of_size, share))
        return of_size

    losses.reduce_weighted_values = reduce
