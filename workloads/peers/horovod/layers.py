"""Batch normalization of images, which both networks have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Mapping

_WEIGHT_OF_BATCH = 0.1
"""Of the moving statistics."""


def norm(
    images: tf.Tensor,
    variables: Mapping[str, tf.Variable],
    path: str,
    scale: tf.Tensor,
    offset: tf.Tensor,
    epsilon: float,
) -> tf.Tensor:
    """Returns images normalized by the batch, and updates the moving statistics.

    Args:
      images: [examples, height, width, channels].
      variables: Those of the network.
      path: That of the layer whose statistics they are.
      scale: [channels].
      offset: [channels].
      epsilon: Added to the variance of the batch.
    """
    moving = [variables[f"{path}.moving_{name}"] for name in ("mean", "variance")]
    result = tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=scale,
        offset=offset,
        mean=moving[0],
        variance=moving[1],
        epsilon=epsilon,
        exponential_avg_factor=_WEIGHT_OF_BATCH,
        is_training=True,
    )
    moving[0].assign(result.batch_mean)
    moving[1].assign(result.batch_variance)
    return result.y
