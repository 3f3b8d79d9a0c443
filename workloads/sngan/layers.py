"""Layers of SN-GAN: conditional batch norm, spectral norm, residual blocks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from workloads.common import normalization
from workloads.common import training as training_lib

# Of the published SN-GAN code.
EPSILON = 2e-5


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
        self.norm = normalization.make(
            statistics, num_channels, epsilon=EPSILON, is_affine=False
        )
        shape = (num_classes, num_channels)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
        self.built = True

    def call(self, inputs: Any, labels: Any, training: bool = False) -> Any:
        """Normalizes [examples, height, width, channels] for labels of [examples]."""
        outputs = self.norm(inputs, training=training)
        gamma = tf.gather(tf.convert_to_tensor(self.gamma), labels)
        beta = tf.gather(tf.convert_to_tensor(self.beta), labels)
        return (
            outputs * tf.cast(gamma, outputs.dtype)[:, None, None]
            + tf.cast(beta, outputs.dtype)[:, None, None]
        )


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
    """Returns the estimate of the spectral norm and the next u."""
    fixed = tf.stop_gradient(matrix)
    v = _normalized(tf.linalg.matvec(fixed, u, transpose_a=True))
    u = _normalized(tf.linalg.matvec(fixed, v))
    sigma = tf.tensordot(u, tf.linalg.matvec(matrix, v), axes=1)
    return sigma, u


def _normalized(vector: tf.Tensor) -> tf.Tensor:
    return vector / (tf.norm(vector) + NORM_EPSILON)


class Spectral(keras.layers.Layer):
    """A layer with one kernel that is divided by its spectral norm.

    Attributes:
      kernel: The trained weights, whose last dimension has the outputs.
      bias: [num_outputs], or None.
      u: The vector of the power iteration, float32, not trained.
    """

    def __init__(
        self,
        *kernel_shape: int,
        seed: int,
        rows_axis: int = -1,
        kernel_initializer: Any = "glorot_uniform",
        use_bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
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

    def product(self, inputs: Any, kernel: tf.Tensor) -> Any:
        """Returns what a kernel makes of the inputs."""
        raise NotImplementedError

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
        """Returns what the divided kernel makes of the inputs."""
        outputs = self.product(inputs, self.normalized_kernel(training=training))
        return outputs if self.bias is None else outputs + self.bias


class SpectralConv2D(Spectral):
    """Convolution with SAME padding; the rows of its matrix are output channels."""

    def product(self, inputs: Any, kernel: tf.Tensor) -> Any:
        """Returns the convolution of [examples, height, width, num_inputs]."""
        return tf.nn.conv2d(inputs, kernel, 1, "SAME")


class SpectralDense(Spectral):
    """Fully connected layer; the rows of its matrix are outputs."""

    def product(self, inputs: Any, kernel: tf.Tensor) -> Any:
        """Returns the product of [examples, num_inputs] and the weights."""
        return tf.linalg.matmul(inputs, kernel)


class SpectralEmbedding(Spectral):
    """One vector per class; the rows of its matrix, [classes, outputs], are classes."""

    def __init__(self, *kernel_shape: int, **options: Any) -> None:
        super().__init__(*kernel_shape, rows_axis=0, use_bias=False, **options)

    def product(self, inputs: Any, kernel: tf.Tensor) -> Any:
        """Returns [examples, num_outputs] for class ids of [examples], integer."""
        return tf.gather(kernel, inputs)


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
        num_classes: int,
        batch_norm: str,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(name=name)
        self.norm_1 = ConditionalBatchNormalization(
            num_classes, num_inputs, statistics=batch_norm, name="norm_1"
        )
        self.conv_1 = conv(num_inputs, num_outputs, 3, seed, "conv_1")
        self.norm_2 = ConditionalBatchNormalization(
            num_classes, num_outputs, statistics=batch_norm, name="norm_2"
        )
        self.conv_2 = conv(num_outputs, num_outputs, 3, seed + 1, "conv_2")
        self.shortcut = conv(num_inputs, num_outputs, 1, seed + 2, "shortcut")
        self.built = True

    def call(self, inputs: Any, labels: Any, training: bool = False) -> Any:
        """Maps [examples, s, s, num_inputs] to [examples, 2 s, 2 s, num_outputs]."""
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
        """Maps [examples, s, s, num_inputs] to num_outputs channels."""
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
