"""Batch normalization whose scale and offset depend on the class of the example."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from workloads.common import batch_norm

# Of the published SN-GAN code.
EPSILON = 2e-5
_CHANNELS_LAST = 4  # rank of images


class ConditionalBatchNormalization(keras.layers.Layer):
    """Normalizes, then scales and shifts by the class (Dumoulin et al. 2017).

        gamma[label] * (x - mean) / sqrt(variance + epsilon) + beta[label]

    Attributes:
      norm: The normalization, without scale and offset.
      gamma: [num_classes, num_channels], initially one.
      beta: [num_classes, num_channels], initially zero.
    """

    def __init__(
        self,
        num_classes: int,
        num_channels: int,
        *,
        statistics: str = "local",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.norm = batch_norm.make(
            statistics, num_channels, epsilon=EPSILON, is_affine=False
        )
        shape = (num_classes, num_channels)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
        self.built = True

    def call(self, inputs: Any, labels: Any, training: bool = False) -> Any:
        """Normalizes [examples, height, width, channels] for labels of [examples]."""
        if inputs.shape.rank != _CHANNELS_LAST or labels.shape.rank != 1:
            raise ValueError(
                "ConditionalBatchNormalization needs images of shape [examples, "
                "height, width, channels] and labels of shape [examples], but got "
                f"{inputs.shape} and {labels.shape}"
            )
        if not labels.dtype.is_integer:
            raise ValueError(
                "ConditionalBatchNormalization needs integer labels, but got "
                f"{labels.dtype.name!r}; pass class ids"
            )
        outputs = self.norm(inputs, training=training)
        gamma = tf.gather(tf.convert_to_tensor(self.gamma), labels)
        beta = tf.gather(tf.convert_to_tensor(self.beta), labels)
        return (
            outputs * tf.cast(gamma, outputs.dtype)[:, None, None]
            + tf.cast(beta, outputs.dtype)[:, None, None]
        )
