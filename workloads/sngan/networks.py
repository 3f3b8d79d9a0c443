"""Generator and projection discriminator (Miyato et al. 2018, tables 4 and 6)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.common import normalization
from workloads.common import training as training_lib
from workloads.controls import own_rows

from .layers import (
    EPSILON,
    DiscriminatorBlock,
    GeneratorBlock,
    SpectralDense,
    SpectralEmbedding,
)
from .study import FIRST_SIZE

if TYPE_CHECKING:
    import numpy as np

    from .study import SNGANConfig


NUM_CHANNELS = 3
# Distance between the seeds of one block and the next.
_SEEDS_PER_BLOCK = 10


class Generator(keras.Model):
    """Maps latent vectors and classes to images in [-1, 1]."""

    def __init__(self, config: SNGANConfig, *, seed: int) -> None:
        super().__init__(name="generator", dtype=config.compute_dtype)
        with training_lib.dtype_policy(config.compute_dtype):
            channels = config.block_channels
            self._first_channels = channels[0]
            self.dense = keras.layers.Dense(
                FIRST_SIZE * FIRST_SIZE * channels[0],
                kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
                name="dense",
            )
            self.dense.build((None, config.latent_size))
            self.blocks = [
                GeneratorBlock(
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
            self.last_norm = normalization.make(
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
        self.built = True

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
        with training_lib.dtype_policy(config.compute_dtype):
            blocks = []
            num_inputs = NUM_CHANNELS
            for index, (width, downsamples) in enumerate(discriminator_widths(config)):
                block = DiscriminatorBlock(
                    num_inputs,
                    width,
                    downsamples=downsamples,
                    is_first=not index,
                    seed=seed + _SEEDS_PER_BLOCK * index,
                    name=f"block_{index}",
                )
                blocks.append(block)
                num_inputs = width
            self.first_block, *self.blocks = blocks
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
        self.built = True

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


# Pixels have 256 integer levels; noise as wide as one level fills the gaps.
PIXEL_STEP = 2.0 / 255.0
GENERATOR, DISCRIMINATOR, _PIXELS = 1, 2, 3
"""What random numbers are for: an update of one of the networks, or pixels."""


class Noise:
    """The random numbers of a step, of which each replica draws its own.

    ``num_matched`` replicas, which are compared with one, draw those of all, the same
    in every step, and each uses its rows.
    """

    def __init__(self, config: SNGANConfig, num_matched: int = 0) -> None:
        self._config, self._num_matched = config, num_matched

    def inputs(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns latents and uniformly drawn classes, of one of the networks."""
        if self._num_matched:
            of_all = self._inputs_of_all(count * self._num_matched, whose)
            latents, labels = map(own_rows, of_all)
            return latents, labels
        config = self._config
        latents = tf.random.normal([count, config.latent_size])
        return latents, tf.random.uniform([count], 0, config.num_classes, tf.int32)

    def pixels(self, count: int, *shape: int) -> tf.Tensor:
        """Returns noise as wide as one level of a pixel."""
        if self._num_matched:
            return own_rows(self._pixels_of_all(count * self._num_matched, *shape))
        return tf.random.uniform([count, *shape], 0.0, PIXEL_STEP)

    def of_all(self, total: int) -> dict[str, np.ndarray]:
        """Returns what a matched step of so many examples draws, by name."""
        config, size = self._config, self._config.image_size
        found = {"pixels": self._pixels_of_all(total, size, size, NUM_CHANNELS)}
        for name, whose, factor in (
            ("generator", GENERATOR, config.generator_batch_factor),
            ("discriminator", DISCRIMINATOR, 1),
        ):
            latents, labels = self._inputs_of_all(total * factor, whose)
            found |= {f"{name}_latents": latents, f"{name}_labels": labels}
        return {name: value.numpy() for name, value in found.items()}

    def _inputs_of_all(self, total: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        config, seed = self._config, [whose, 0]
        return (
            tf.random.stateless_normal([total, config.latent_size], seed),
            tf.random.stateless_uniform([total], seed, 0, config.num_classes, tf.int32),
        )

    def _pixels_of_all(self, *shape: int) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, [_PIXELS, 0], 0.0, PIXEL_STEP)


def discriminator_loss(real_logits: tf.Tensor, fake_logits: tf.Tensor) -> tf.Tensor:
    """Returns mean(max(0, 1 - real)) + mean(max(0, 1 + fake)).

    Lim & Ye 2017; Miyato et al. 2018, equation 16, with the sign of a loss.
    """
    real = tf.reduce_mean(tf.nn.relu(1.0 - real_logits))
    return real + tf.reduce_mean(tf.nn.relu(1.0 + fake_logits))


def generator_loss(fake_logits: tf.Tensor) -> tf.Tensor:
    """Returns -mean(fake); Miyato et al. 2018, equation 17."""
    return -tf.reduce_mean(fake_logits)


@keras.saving.register_keras_serializable(package="replicator_harness")
class LinearDecay(training_lib.Schedule):
    """Keeps a rate until ``decay_start`` of all steps, then falls to zero at the end.

    As in the published code of SN-GAN: from 400,000 to 450,000 updates of the generator
    on ImageNet, from the beginning on CIFAR-10. Arguments are ``learning_rate``,
    ``num_steps`` and ``decay_start``.
    """

    def __call__(self, step: Any) -> Any:
        """Returns the rate of an update."""
        rate, start = self.arguments["learning_rate"], self.arguments["decay_start"]
        if start >= 1:
            return tf.constant(rate, tf.float32)
        share = tf.cast(step, tf.float32) / self.arguments["num_steps"]
        left = (1.0 - share) / (1.0 - start)
        return rate * tf.clip_by_value(left, 0.0, 1.0)


# Norms, activations, lookups of classes and updates are left out, as for ResNet-50
# (``workloads/resnet50/model.py``), and so are spectral norms, whose cost does not
# depend on the number of images.


def training_flops(
    generator: Generator, discriminator: Discriminator, config: SNGANConfig
) -> int:
    """Returns the floating-point operations of one real image in a training step.

    Two per multiply-add. Every step generates an image per real one, without a
    gradient, and trains the discriminator on both, whose pixels need no gradient. Every
    ``num_discriminator_steps``-th step trains the generator, through a discriminator
    whose weights need no gradient.
    """
    latents = _products(generator.dense)
    generating, size = latents, FIRST_SIZE
    for block in generator.blocks:
        generating += _products(block.shortcut, size)  # before upsampling
        size *= 2
        generating += _products(block.conv_1, size) + _products(block.conv_2, size)
    generating += _products(generator.last_conv, size)
    judging = _products(discriminator.dense)
    pixels = _products(discriminator.first_block.conv_1, size)
    for block in (discriminator.first_block, *discriminator.blocks):
        judging += _products(block.conv_1, size) + _products(block.conv_2, size)
        size = size // 2 if block.downsamples else size
        if block.shortcut is not None:
            judging += _products(block.shortcut, size)
        if block is discriminator.first_block:
            pixels += _products(block.shortcut, size)
    of_discriminator = generating + 2 * (3 * judging - pixels)
    of_generator = 3 * generating - latents + 2 * judging
    share = config.generator_batch_factor / config.num_discriminator_steps
    return round(2 * (of_discriminator + share * of_generator))


def _products(layer: Any, size: int = 1) -> int:
    """Returns the multiply-adds of a layer on an image of ``size`` times ``size``."""
    return math.prod(layer.kernel.shape) * size**2
