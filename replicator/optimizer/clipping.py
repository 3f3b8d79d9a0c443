"""Clipping of averaged gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.optimizer.sparse import sum_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

_KERAS_OPTIONS = ("clipnorm", "clipvalue", "global_clipnorm")


def by_global_norm(grads: Sequence[Any], limit: float) -> list[Any]:
    """Scales all gradients so that their global norm is at most ``limit``.

    Pascanu et al. 2013. The norm is computed in float32. Slices of a sparse gradient
    that have the same index are summed first, as in the dense gradient.

    Args:
      grads: Dense or sparse, averaged over replicas.
      limit: Largest norm.

    Returns:
      The gradients times ``min(1, limit / norm)``; NaN if the norm is not finite.
    """
    unique = list(map(sum_duplicates, grads))
    return list(tf.clip_by_global_norm(unique, limit)[0])


def of_keras(optimizer: Any) -> dict[str, float]:
    """The clipping options that a Keras optimizer has set, by name."""
    found = {name: getattr(optimizer, name, None) for name in _KERAS_OPTIONS}
    return {name: value for name, value in found.items() if value}


def as_keras(grads: Sequence[Any], clips: dict[str, float]) -> list[Any]:
    """Clips as a Keras optimizer with these options would."""
    if "clipnorm" in clips:
        return [tf.clip_by_norm(grad, clips["clipnorm"]) for grad in grads]
    if "global_clipnorm" in clips:
        return list(tf.clip_by_global_norm(list(grads), clips["global_clipnorm"])[0])
    if "clipvalue" in clips:
        limit = clips["clipvalue"]
        return [tf.clip_by_value(grad, -limit, limit) for grad in grads]
    return list(grads)
