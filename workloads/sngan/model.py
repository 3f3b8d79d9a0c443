"""SN-GAN: spectral norms, residual blocks, networks, noise and losses.

Generator and projection discriminator are those of Miyato et al. 2018, tables 4 and 6.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.common import training as training_lib
from workloads.common.training import products_of
from workloads.controls import own_rows

from .study import FIRST_SIZE

if TYPE_CHECKING:
    import numpy as np

    from .study import SNGANConfig

# Of the published SN-GAN code.
EPSILON = 2e-5


class ConditionalBatchNormalization(keras.layers.Layer):
    """Normalizes, then scales and shifts by the class (Dumoulin et al. 2017).

    gamma[label] * (x - mean) / sqrt(variance + epsilon) + beta[label]

    Takes images [examples, height, width, channels] and their classes [examples].

    Args:
      num_classes: Rows of gamma and beta.
      num_channels: Channels of the images.
      statistics: ``local`` normalizes by the replica's own batch, ``cross_replica`` by
        the global one.
      name: Of the layer.
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
        self.norm = training_lib.batch_norm(
            statistics, num_channels, epsilon=EPSILON, center=False, scale=False
        )
        shape = (num_classes, num_channels)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
        self.built = True

    def call(self, inputs: Any, labels: Any, training: bool = False) -> Any:
        outputs = self.norm(inputs, training=training)
        gamma, beta = (
            tf.cast(tf.gather(tf.convert_to_tensor(table), labels), outputs.dtype)
            for table in (self.gamma, self.beta)
        )
        return outputs * gamma[:, None, None] + beta[:, None, None]


# The norm of W [rows, columns] is tracked by one step of the power iteration per call,
# from a vector u [rows] that is kept from step to step:
#
#     v = W^T u / |W^T u|,  u' = W v / |W v|,  sigma = u'^T W v
#
# u and v are constants for gradients, so that the gradient of sigma is u' v^T. In
# training u' is kept; otherwise it is used and discarded, as in the published code.
#
# Under replication u is an ordinary mirrored variable: the value written to it depends
# only on W and u, which are identical on every replica, and not on any example. The
# ``in_graph`` engine proves that and computes it once where replicas share memory;
# other backends compute the same on every replica. ``tf.distribute`` must be given the
# replica whose value is used when all write the same: the first. Workers of different
# hardware could round differently; as for the weights, ``assert_in_sync`` would detect
# it.

NORM_EPSILON = 1e-12


def power_step(matrix: tf.Tensor, u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the estimate of the spectral norm and the next u.

    Args:
      matrix: [rows, columns]; the norm has its gradient.
      u: [rows], from the step before.
    """
    fixed = tf.stop_gradient(matrix)
    v = _normalized(tf.linalg.matvec(fixed, u, transpose_a=True))
    u = _normalized(tf.linalg.matvec(fixed, v))
    sigma = tf.tensordot(u, tf.linalg.matvec(matrix, v), axes=1)
    return sigma, u


def _normalized(vector: tf.Tensor) -> tf.Tensor:
    return vector / (tf.norm(vector) + NORM_EPSILON)


class Spectral(keras.layers.Layer):
    """A layer with one kernel, which is divided by its spectral norm."""

    def __init__(
        self,
        *kernel_shape: int,
        product: Callable[[Any, tf.Tensor], Any],
        seed: int,
        rows_axis: int = -1,
        kernel_initializer: Any = "glorot_uniform",
        use_bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._product = product  # What a kernel makes of the inputs.
        self._rows_axis = rows_axis % len(kernel_shape)
        self.kernel = self.add_weight(
            name="kernel",
            shape=kernel_shape,
            initializer=kernel_initializer,
            autocast=False,  # the norm is computed in float32
        )
        self.bias = None
        if use_bias:
            shape = kernel_shape[-1:]
            self.bias = self.add_weight(name="bias", shape=shape, initializer="zeros")
        self.u = self.add_weight(
            name="u",
            shape=(kernel_shape[rows_axis],),
            initializer=keras.initializers.RandomNormal(0.0, 1.0, seed=seed),
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )
        self.built = True

    def normalized_kernel(self, *, training: bool) -> tf.Tensor:
        """Returns kernel / sigma in the layer's compute type; in training updates u."""
        kernel = tf.convert_to_tensor(self.kernel)
        axes = [axis for axis in range(len(kernel.shape)) if axis != self._rows_axis]
        matrix = tf.transpose(kernel, [self._rows_axis, *axes])
        matrix = tf.reshape(matrix, [matrix.shape[0], -1])
        sigma, u = power_step(matrix, tf.convert_to_tensor(self.u))
        if training:
            training_lib.assign(self.u, u)
        return tf.cast(kernel / sigma, self.compute_dtype)

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self._product(inputs, self.normalized_kernel(training=training))
        return outputs if self.bias is None else outputs + self.bias


SpectralConv2D = functools.partial(
    Spectral, product=functools.partial(tf.nn.conv2d, strides=1, padding="SAME")
)
"""A padded convolution: ``SpectralConv2D(height, width, inputs, outputs, seed=)``.

The rows of its matrix are the output channels."""
SpectralDense = functools.partial(Spectral, product=tf.linalg.matmul)
"""A fully connected layer: ``SpectralDense(inputs, outputs, seed=)``.

The rows of its matrix are the outputs."""
SpectralEmbedding = functools.partial(
    Spectral,
    product=lambda classes, kernel: tf.gather(kernel, classes),
    rows_axis=0,
    use_bias=False,
)
"""A vector of each class: ``SpectralEmbedding(classes, outputs, seed=)``.

The rows of its matrix are the classes."""


# Details as in the published code: nearest-neighbour upsampling before the first
# convolution, average pooling after the second, shortcuts of 1x1 convolutions, no
# pre-activation in the discriminator's first block.


def initializer(kernel_size: int, seed: int) -> keras.initializers.Initializer:
    """Glorot's uniform, with limits times sqrt(2) for 3x3 convolutions."""
    scale = 1.0 if kernel_size == 1 else 2.0
    return keras.initializers.VarianceScaling(scale, "fan_avg", "uniform", seed=seed)


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


def conv(
    num_inputs: int, num_outputs: int, kernel_size: int, seed: int, name: str
) -> keras.layers.Conv2D:
    """Returns a convolution of the generator, built."""
    layer = keras.layers.Conv2D(
        num_outputs,
        kernel_size,
        padding="same",
        kernel_initializer=initializer(kernel_size, seed),
        name=name,
    )
    layer.build((None, None, None, num_inputs))
    return layer


class GeneratorBlock(keras.layers.Layer):
    """Doubles height and width; normalizes conditionally on the class."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        config: SNGANConfig,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(name=name)
        norm = functools.partial(
            ConditionalBatchNormalization,
            config.num_classes,
            statistics=config.batch_norm,
        )
        self.norm_1 = norm(num_inputs, name="norm_1")
        self.conv_1 = conv(num_inputs, num_outputs, 3, seed, "conv_1")
        self.norm_2 = norm(num_outputs, name="norm_2")
        self.conv_2 = conv(num_outputs, num_outputs, 3, seed + 1, "conv_2")
        self.shortcut = conv(num_inputs, num_outputs, 1, seed + 2, "shortcut")
        self.built = True

    def call(self, inputs: Any, labels: Any, training: bool = False) -> Any:
        hidden = tf.nn.relu(self.norm_1(inputs, labels, training=training))
        hidden = self.conv_1(upsample(hidden))
        hidden = tf.nn.relu(self.norm_2(hidden, labels, training=training))
        # A 1x1 convolution of repeated pixels is the repetition of it.
        return self.conv_2(hidden) + upsample(self.shortcut(inputs))


class DiscriminatorBlock(keras.layers.Layer):
    """A residual block with spectral norms; optionally halves height and width.

    The first one, on pixels, is without an activation before them.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        downsamples: bool,
        is_first: bool,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(name=name)
        self.downsamples, self._is_first = downsamples, is_first

        def spectral(
            inputs: int, outputs: int, size: int, index: int, name: str
        ) -> Any:
            return SpectralConv2D(
                *(size, size, inputs, outputs),
                kernel_initializer=initializer(size, seed + index),
                seed=seed + index,
                name=name,
            )

        width = num_outputs if is_first else num_inputs
        self.conv_1 = spectral(num_inputs, width, 3, 0, "conv_1")
        self.conv_2 = spectral(width, num_outputs, 3, 1, "conv_2")
        self.shortcut = None
        if downsamples or num_inputs != num_outputs:
            self.shortcut = spectral(num_inputs, num_outputs, 1, 2, "shortcut")
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = inputs if self._is_first else tf.nn.relu(inputs)
        hidden = self.conv_1(hidden, training=training)
        outputs = self.conv_2(tf.nn.relu(hidden), training=training)
        shortcut = inputs
        if self.downsamples:
            outputs = downsample(outputs)
            # Averaging and a 1x1 convolution commute; this order is cheaper.
            shortcut = downsample(shortcut)
        if self.shortcut is not None:
            shortcut = self.shortcut(shortcut, training=training)
        return outputs + shortcut


NUM_CHANNELS = 3
# Distance between the seeds of one block and the next.
_SEEDS_PER_BLOCK = 10


class Generator(keras.Model):
    """Maps latent vectors and classes to images in [-1, 1].

    Takes [examples, latent size] and [examples]; returns [examples, size, size, 3] in
    float32.

    Args:
      config: Sizes, number type and batch normalization.
      seed: Of the initial values.
    """

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
                    config=config,
                    seed=seed + _SEEDS_PER_BLOCK * (index + 1),
                    name=f"block_{index}",
                )
                for index, (num_inputs, num_outputs) in enumerate(
                    itertools.pairwise(channels)
                )
            ]
            # Not conditional on the class, as in the published code.
            self.last_norm = training_lib.batch_norm(
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
        shape = [-1, FIRST_SIZE, FIRST_SIZE, self._first_channels]
        hidden = tf.reshape(self.dense(latents), shape)
        for block in self.blocks:
            hidden = block(hidden, labels, training=training)
        hidden = tf.nn.relu(self.last_norm(hidden, training=training))
        return tf.cast(tf.nn.tanh(self.last_conv(hidden)), tf.float32)


class Discriminator(keras.Model):
    """Distinguishes real from generated images, by projection on the class.

    The logit is ``psi(phi(x)) + <V y, phi(x)>`` (Miyato & Koyama 2018, equation 7).
    Takes images [examples, size, size, 3] and classes [examples]; returns [examples].

    Args:
      config: Sizes and number type.
      seed: Of the initial values.
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

    ``num_matched`` replicas, which are compared with one, draw those of all, and each
    uses its rows.
    """

    def __init__(self, config: SNGANConfig, num_matched: int = 0) -> None:
        self._config, self._num_matched = config, num_matched

    def inputs(self, count: int, whose: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns latents and uniformly drawn classes, of one of the networks."""
        if self._num_matched:
            all_draws = self._inputs_of_all(count * self._num_matched, whose)
            latents, labels = map(own_rows, all_draws)
            return latents, labels
        config = self._config
        latents = tf.random.normal([count, config.latent_size])
        return latents, tf.random.uniform([count], 0, config.num_classes, tf.int32)

    def pixels(self, count: int, *shape: int) -> tf.Tensor:
        """Returns noise as wide as one level of a pixel."""
        if self._num_matched:
            return own_rows(self._pixels_of_all(count * self._num_matched, *shape))
        return tf.random.uniform([count, *shape], 0.0, PIXEL_STEP)

    def all_draws(self, total: int) -> dict[str, np.ndarray]:
        """Returns what a matched step of so many examples draws, by name."""
        config, size = self._config, self._config.image_size
        values = {"pixels": self._pixels_of_all(total, size, size, NUM_CHANNELS)}
        for name, whose, factor in (
            ("generator", GENERATOR, config.generator_batch_factor),
            ("discriminator", DISCRIMINATOR, 1),
        ):
            latents, labels = self._inputs_of_all(total * factor, whose)
            values |= {f"{name}_latents": latents, f"{name}_labels": labels}
        return {name: value.numpy() for name, value in values.items()}

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
@dataclasses.dataclass(kw_only=True, eq=False)
class LinearDecay(training_lib.Schedule):
    """Keeps a rate until ``decay_start`` of all steps, then falls to zero.

    Attributes:
      learning_rate: The rate at first.
      num_steps: Steps after which it is zero.
      decay_start: The share of them after which it falls, linearly; 1 for never.
    """

    learning_rate: float
    num_steps: int
    decay_start: float

    def __call__(self, step: Any) -> Any:
        if self.decay_start >= 1:
            return tf.constant(self.learning_rate, tf.float32)
        share = tf.cast(step, tf.float32) / self.num_steps
        left = (1.0 - share) / (1.0 - self.decay_start)
        return self.learning_rate * tf.clip_by_value(left, 0.0, 1.0)


# Lookups of classes are left out of the operations, and so are spectral norms, whose
# cost does not depend on the number of images.


def training_flops(
    generator: Generator, discriminator: Discriminator, config: SNGANConfig
) -> int:
    """Returns the floating-point operations of one real image in a training step.

    Two per multiply-add. Every step generates an image per real one, without a
    gradient, and trains the discriminator on both, whose pixels need no gradient. Every
    ``num_discriminator_steps``-th step trains the generator, through a discriminator
    whose weights need no gradient.
    """
    latents = products_of(generator.dense)
    generating, size = latents, FIRST_SIZE
    for block in generator.blocks:
        generating += products_of(block.shortcut, size)  # before upsampling
        size *= 2
        generating += products_of(block.conv_1, size) + products_of(block.conv_2, size)
    generating += products_of(generator.last_conv, size)
    judging = products_of(discriminator.dense)
    first = discriminator.first_block
    pixels = products_of(first.conv_1, size)
    for block in (first, *discriminator.blocks):
        judging += products_of(block.conv_1, size) + products_of(block.conv_2, size)
        size = size // 2 if block.downsamples else size
        if block.shortcut is not None:
            judging += products_of(block.shortcut, size)
        if block is first:
            pixels += products_of(block.shortcut, size)
    of_discriminator = generating + 2 * (3 * judging - pixels)
    of_generator = 3 * generating - latents + 2 * judging
    share = config.generator_batch_factor / config.num_discriminator_steps
    return round(2 * (of_discriminator + share * of_generator))
