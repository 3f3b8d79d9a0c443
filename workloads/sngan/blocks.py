"""Residual blocks of generator and discriminator (Miyato et al. 2018, figure 8).

Details as in the published code: nearest-neighbour upsampling before the first
convolution, average pooling after the second, shortcuts of 1x1 convolutions, no
pre-activation in the discriminator's first block.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from workloads.common.conditional_batch_norm import ConditionalBatchNormalization
from workloads.common.spectral_norm import SpectralConv2D


def residual_initializer(seed: int) -> keras.initializers.Initializer:
    """Glorot's uniform with limits times sqrt(2), for 3x3 convolutions."""
    return keras.initializers.VarianceScaling(2.0, "fan_avg", "uniform", seed=seed)


def downsample(images: Any) -> Any:
    """Halves height and width by averaging."""
    return tf.nn.avg_pool2d(images, 2, 2, "VALID")


def upsample(images: Any) -> Any:
    """Doubles height and width by repeating."""
    examples, height, width, channels = images.shape
    if examples is None:
        examples = tf.shape(images)[0]
    tiled = tf.tile(images[:, :, None, :, None], [1, 1, 2, 1, 2, 1])
    return tf.reshape(tiled, [examples, 2 * height, 2 * width, channels])


class GeneratorBlock(keras.layers.Layer):
    """Doubles height and width; normalizes conditionally on the class."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        num_classes: int,
        batch_norm: str,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(name=name)
        self.norm_1 = ConditionalBatchNormalization(
            num_classes, num_inputs, statistics=batch_norm, name="norm_1"
        )
        self.conv_1 = _conv(num_inputs, num_outputs, 3, seed, "conv_1")
        self.norm_2 = ConditionalBatchNormalization(
            num_classes, num_outputs, statistics=batch_norm, name="norm_2"
        )
        self.conv_2 = _conv(num_outputs, num_outputs, 3, seed + 1, "conv_2")
        self.shortcut = _conv(num_inputs, num_outputs, 1, seed + 2, "shortcut")
        self.built = True

    def call(self, inputs: Any, labels: Any, training: bool = False) -> Any:
        """Maps [examples, s, s, num_inputs] to [examples, 2 s, 2 s, num_outputs]."""
        hidden = tf.nn.relu(self.norm_1(inputs, labels, training=training))
        hidden = self.conv_1(upsample(hidden))
        hidden = tf.nn.relu(self.norm_2(hidden, labels, training=training))
        # A 1x1 convolution of repeated pixels is the repetition of it.
        return self.conv_2(hidden) + upsample(self.shortcut(inputs))


class DiscriminatorBlock(keras.layers.Layer):
    """A residual block with spectral norms; optionally halves height and width."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        downsamples: bool,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(name=name)
        self._downsamples = downsamples
        self.conv_1 = _spectral(num_inputs, num_inputs, 3, seed, "conv_1")
        self.conv_2 = _spectral(num_inputs, num_outputs, 3, seed + 1, "conv_2")
        self.shortcut = None
        if downsamples or num_inputs != num_outputs:
            self.shortcut = _spectral(num_inputs, num_outputs, 1, seed + 2, "shortcut")
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Maps [examples, s, s, num_inputs] to num_outputs channels."""
        hidden = self.conv_1(tf.nn.relu(inputs), training=training)
        hidden = self.conv_2(tf.nn.relu(hidden), training=training)
        outputs = hidden
        shortcut = inputs
        if self._downsamples:
            outputs = downsample(outputs)
            # Averaging and a 1x1 convolution commute; this order is cheaper.
            shortcut = downsample(shortcut)
        if self.shortcut is not None:
            shortcut = self.shortcut(shortcut, training=training)
        return outputs + shortcut


class FirstDiscriminatorBlock(keras.layers.Layer):
    """The first block, on pixels: without an activation before them."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, seed: int, name: str
    ) -> None:
        super().__init__(name=name)
        self.conv_1 = _spectral(num_inputs, num_outputs, 3, seed, "conv_1")
        self.conv_2 = _spectral(num_outputs, num_outputs, 3, seed + 1, "conv_2")
        self.shortcut = _spectral(num_inputs, num_outputs, 1, seed + 2, "shortcut")
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Halves height and width of [examples, size, size, num_inputs]."""
        hidden = tf.nn.relu(self.conv_1(inputs, training=training))
        hidden = downsample(self.conv_2(hidden, training=training))
        return hidden + self.shortcut(downsample(inputs), training=training)


def _conv(
    num_inputs: int, num_outputs: int, kernel_size: int, seed: int, name: str
) -> keras.layers.Conv2D:
    layer = keras.layers.Conv2D(
        num_outputs,
        kernel_size,
        padding="same",
        kernel_initializer=_initializer(kernel_size, seed),
        name=name,
    )
    layer.build((None, None, None, num_inputs))
    return layer


def _spectral(
    num_inputs: int, num_outputs: int, kernel_size: int, seed: int, name: str
) -> SpectralConv2D:
    return SpectralConv2D(
        num_inputs,
        num_outputs,
        kernel_size=kernel_size,
        kernel_initializer=_initializer(kernel_size, seed),
        seed=seed,
        name=name,
    )


def _initializer(kernel_size: int, seed: int) -> keras.initializers.Initializer:
    if kernel_size == 1:
        return keras.initializers.GlorotUniform(seed=seed)
    return residual_initializer(seed)
