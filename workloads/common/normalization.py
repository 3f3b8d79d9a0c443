"""Batch normalization, by each replica's own batch or by the global one."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import replicator

MOMENTUM = 0.9
"""Of ResNet (He et al. 2016) and of the published SN-GAN code."""


def make(
    statistics: str,
    num_channels: int,
    *,
    epsilon: float,
    gamma_init: str = "ones",
    is_affine: bool = True,
    name: str | None = None,
) -> Any:
    """Creates and builds a layer that normalizes channels by the batch."""
    if statistics == "local":
        return FusedBatchNorm(
            num_channels,
            epsilon=epsilon,
            gamma_init=gamma_init,
            is_affine=is_affine,
            name=name,
        )
    layer = replicator.CrossReplicaBatchNormalization(
        momentum=MOMENTUM,
        epsilon=epsilon,
        gamma_initializer=gamma_init,
        center=is_affine,
        scale=is_affine,
        name=name,
    )
    layer.build((None, None, None, num_channels))
    return layer


class FusedBatchNorm(keras.layers.Layer):
    """Normalization over this replica's batch, by one kernel.

    Attributes:
      gamma, beta: Scale and offset, [num_channels], or None.
      moving_mean, moving_variance: Replica-local statistics, [num_channels].
    """

    def __init__(
        self,
        num_channels: int,
        *,
        epsilon: float,
        gamma_init: str = "ones",
        is_affine: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._epsilon = epsilon
        self._num_channels = num_channels
        self.gamma = self.beta = None
        if is_affine:
            self.gamma = self._channel_weight("gamma", gamma_init)
            self.beta = self._channel_weight("beta", "zeros")
        self.moving_mean = self._channel_weight("moving_mean", "zeros", trainable=False)
        self.moving_variance = self._channel_weight(
            "moving_variance", "ones", trainable=False
        )
        self.built = True

    def _channel_weight(
        self, name: str, initializer: str, *, trainable: bool = True
    ) -> Any:
        return self.add_weight(
            name=name,
            shape=(self._num_channels,),
            initializer=initializer,
            trainable=trainable,
            autocast=False,  # statistics stay float32 in mixed precision
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns normalized [batch, height, width, num_channels].

        In training, batch statistics are used and the moving ones are updated.
        """
        size = [self._num_channels]
        result = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.ones(size) if self.gamma is None else self.gamma.value,
            offset=tf.zeros(size) if self.beta is None else self.beta.value,
            mean=self.moving_mean.value,
            variance=self.moving_variance.value,
            epsilon=self._epsilon,
            # The weight of the batch in the new moving statistics; the kernel mixes.
            exponential_avg_factor=1.0 - MOMENTUM if training else 1.0,
            is_training=training,
        )
        if training:
            self.moving_mean.assign(result.batch_mean)
            self.moving_variance.assign(result.batch_variance)
        return result.y
