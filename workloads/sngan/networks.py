"""Generator and projection discriminator (Miyato et al. 2018, tables 4 and 6)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.common import batch_norm, precision
from workloads.common.conditional_batch_norm import EPSILON
from workloads.common.spectral_norm import SpectralDense, SpectralEmbedding
from workloads.sngan import blocks
from workloads.sngan.config import FIRST_SIZE

if TYPE_CHECKING:
    from workloads.sngan.config import SNGANConfig

NUM_CHANNELS = 3
# Distance between the seeds of one block and the next.
_SEEDS_PER_BLOCK = 10


class Generator(keras.Model):
    """Maps latent vectors and classes to images in [-1, 1]."""

    def __init__(self, config: SNGANConfig, *, seed: int) -> None:
        super().__init__(name="generator", dtype=config.compute_dtype)
        with precision.dtype_policy(config.compute_dtype):
            self._build_layers(config, seed)
        self.built = True

    def _build_layers(self, config: SNGANConfig, seed: int) -> None:
        channels = config.block_channels
        self._first_channels = channels[0]
        self.dense = keras.layers.Dense(
            FIRST_SIZE * FIRST_SIZE * channels[0],
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
            name="dense",
        )
        self.dense.build((None, config.latent_size))
        self.blocks = [
            blocks.GeneratorBlock(
                num_inputs,
                num_outputs,
                num_classes=config.num_classes,
                batch_norm=config.batch_norm,
                seed=seed + _SEEDS_PER_BLOCK * (index + 1),
                name=f"block_{index}",
            )
            for index, (num_inputs, num_outputs) in enumerate(
                itertools.pairwise(channels)
            )
        ]
        # Not conditional on the class, as in the published code.
        self.last_norm = batch_norm.make(
            config.batch_norm, channels[-1], epsilon=EPSILON, name="last_norm"
        )
        self.last_conv = keras.layers.Conv2D(
            NUM_CHANNELS,
            3,
            padding="same",
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed + 1),
            name="last_conv",
        )
        self.last_conv.build((None, None, None, channels[-1]))

    def call(self, latents: Any, labels: Any, training: bool = False) -> Any:
        """Returns images [examples, size, size, 3] in [-1, 1]."""
        hidden = self.dense(latents)
        shape = [-1, FIRST_SIZE, FIRST_SIZE, self._first_channels]
        hidden = tf.reshape(hidden, shape)
        for block in self.blocks:
            hidden = block(hidden, labels, training=training)
        hidden = tf.nn.relu(self.last_norm(hidden, training=training))
        return tf.cast(tf.nn.tanh(self.last_conv(hidden)), tf.float32)


class Discriminator(keras.Model):
    """Distinguishes real from generated images, by projection on the class.

    The logit is ``psi(phi(x)) + <V y, phi(x)>`` (Miyato & Koyama 2018, equation 7).
    """

    def __init__(self, config: SNGANConfig, *, seed: int) -> None:
        super().__init__(name="discriminator", dtype=config.compute_dtype)
        with precision.dtype_policy(config.compute_dtype):
            self._build_layers(config, seed)
        self.built = True

    def _build_layers(self, config: SNGANConfig, seed: int) -> None:
        widths = discriminator_widths(config)
        first, *others = widths
        self.first_block = blocks.FirstDiscriminatorBlock(
            NUM_CHANNELS, first[0], seed=seed, name="block_0"
        )
        self.blocks = []
        num_inputs = first[0]
        for index, (num_outputs, downsamples) in enumerate(others, start=1):
            block = blocks.DiscriminatorBlock(
                num_inputs,
                num_outputs,
                downsamples=downsamples,
                seed=seed + _SEEDS_PER_BLOCK * index,
                name=f"block_{index}",
            )
            self.blocks.append(block)
            num_inputs = num_outputs
        self.dense = SpectralDense(
            num_inputs,
            1,
            use_bias=config.layout != "cifar",
            seed=seed + 1,
            name="dense",
        )
        self.embedding = SpectralEmbedding(
            config.num_classes, num_inputs, seed=seed + 2, name="embedding"
        )

    def call(self, images: Any, labels: Any, training: bool = False) -> Any:
        """Returns logits [examples]."""
        hidden = self.first_block(images, training=training)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        # Sums are in float32, whatever the type of the layers.
        features = tf.reduce_sum(tf.cast(tf.nn.relu(hidden), tf.float32), axis=[1, 2])
        of_class = tf.cast(self.embedding(labels, training=training), tf.float32)
        logits = tf.cast(self.dense(features, training=training)[:, 0], tf.float32)
        return logits + tf.reduce_sum(features * of_class, axis=-1)


def discriminator_widths(config: SNGANConfig) -> list[tuple[int, bool]]:
    """Channels of each block, and whether it halves height and width."""
    width = config.discriminator_channels
    if config.layout == "cifar":
        # Two halvings, whatever the size, then two blocks at the remaining size.
        return [(width, True), (width, True), (width, False), (width, False)]
    count = config.num_doublings
    widths = [(width << index, True) for index in range(count)]
    return [*widths, (width << (count - 1), False)]
