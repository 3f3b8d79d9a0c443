"""Batch normalization: over each replica's own batch, or over the global batch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import replicator

MOMENTUM = 0.9
EPSILON = 1e-5


def make(statistics: str, num_channels: int, *, gamma_init: str) -> Any:
    """Creates and builds a layer that normalizes channels by the batch.

    Args:
      statistics: ``local`` (each replica by its own batch, as published) or
        ``cross_replica`` (by the global batch).
      num_channels: The last dimension of its inputs.
      gamma_init: Initializer of the scale.

    Raises:
      ValueError: Unknown statistics.
    """
    if statistics == "local":
        return FusedBatchNorm(num_channels, gamma_init=gamma_init)
    if statistics == "cross_replica":
        layer = replicator.CrossReplicaBatchNormalization(
            momentum=MOMENTUM, epsilon=EPSILON, gamma_initializer=gamma_init
        )
        layer.build((None, None, None, num_channels))
        return layer
    raise ValueError(
        f"statistics {statistics!r} are unknown: use 'local' (each replica by its own "
        "batch) or 'cross_replica' (by the global batch)"
    )


class FusedBatchNorm(keras.layers.Layer):
    """Normalization over this replica's batch, by one kernel.

    Attributes:
      gamma, beta: Scale and offset, [num_channels].
      moving_mean, moving_variance: Replica-local statistics, [num_channels].
    """

    def __init__(self, num_channels: int, *, gamma_init: str = "ones") -> None:
        super().__init__()
        self.gamma = self._channel_weight("gamma", num_channels, gamma_init)
        self.beta = self._channel_weight("beta", num_channels, "zeros")
        self.moving_mean = self._channel_weight(
            "moving_mean", num_channels, "zeros", trainable=False
        )
        self.moving_variance = self._channel_weight(
            "moving_variance", num_channels, "ones", trainable=False
        )
        self.built = True

    def _channel_weight(
        self, name: str, size: int, initializer: str, *, trainable: bool = True
    ) -> Any:
        return self.add_weight(
            name=name,
            shape=(size,),
            initializer=initializer,
            trainable=trainable,
            autocast=False,  # statistics stay float32 in mixed precision
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns normalized [batch, height, width, num_channels].

        In training, batch statistics are used and the moving ones are updated.
        """
        result = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=self.gamma.value,
            offset=self.beta.value,
            mean=self.moving_mean.value,
            variance=self.moving_variance.value,
            epsilon=EPSILON,
            # The weight of the batch in the new moving statistics; the kernel mixes.
            exponential_avg_factor=1.0 - MOMENTUM if training else 1.0,
            is_training=training,
        )
        if training:
            self.moving_mean.assign(result.batch_mean)
            self.moving_variance.assign(result.batch_variance)
        return result.y
