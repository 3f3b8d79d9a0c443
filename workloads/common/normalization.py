"""Batch norm, conditional batch norm and spectral norm, over all replicas."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import replicator
from workloads.common import training as training_lib

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
    if statistics == "cross_replica":
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
    raise ValueError(
        f"statistics {statistics!r} are unknown: use 'local' (each replica by its own "
        "batch) or 'cross_replica' (by the global batch)"
    )


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
        self.norm = make(statistics, num_channels, epsilon=EPSILON, is_affine=False)
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
_MATRIX = 2  # rank


def power_step(matrix: tf.Tensor, u: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the estimate of the spectral norm and the next u."""
    if matrix.shape.rank != _MATRIX or u.shape != matrix.shape[:1]:
        raise ValueError(
            f"power_step needs a matrix and a u as long as its rows, but got shapes "
            f"{matrix.shape} and {u.shape}"
        )
    if matrix.dtype != u.dtype or matrix.dtype not in (tf.float32, tf.float64):
        raise ValueError(
            "power_step needs float32 or float64, the same for both, but got "
            f"{matrix.dtype.name!r} and {u.dtype.name!r}: the iteration does not "
            "converge in lower precision"
        )
    fixed = tf.stop_gradient(matrix)
    v = _normalized(tf.linalg.matvec(fixed, u, transpose_a=True))
    u = _normalized(tf.linalg.matvec(fixed, v))
    sigma = tf.tensordot(u, tf.linalg.matvec(matrix, v), axes=1)
    return sigma, u


def _normalized(vector: tf.Tensor) -> tf.Tensor:
    return vector / (tf.norm(vector) + NORM_EPSILON)


class SpectralLayer(keras.layers.Layer):
    """Base of layers with one kernel that is divided by its spectral norm.

    Attributes:
      kernel: The trained weights.
      bias: [num_outputs], or None.
      u: The vector of the power iteration, float32, not trained.
    """

    def __init__(
        self,
        kernel_shape: tuple[int, ...],
        *,
        rows_axis: int,
        num_biases: int,
        kernel_initializer: Any,
        seed: int,
        name: str | None,
    ) -> None:
        super().__init__(name=name)
        self._rows_axis = rows_axis % len(kernel_shape)
        self.kernel = self.add_weight(
            name="kernel",
            shape=kernel_shape,
            initializer=kernel_initializer,
            autocast=False,  # the norm is computed in float32
        )
        self.bias = (
            self.add_weight(name="bias", shape=(num_biases,), initializer="zeros")
            if num_biases
            else None
        )
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

    def _with_bias(self, outputs: tf.Tensor) -> tf.Tensor:
        return outputs if self.bias is None else outputs + self.bias


class SpectralConv2D(SpectralLayer):
    """Convolution with SAME padding; the rows of its matrix are output channels."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        kernel_size: int,
        seed: int,
        strides: int = 1,
        kernel_initializer: Any = "glorot_uniform",
        use_bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            (kernel_size, kernel_size, num_inputs, num_outputs),
            rows_axis=-1,
            num_biases=num_outputs if use_bias else 0,
            kernel_initializer=kernel_initializer,
            seed=seed,
            name=name,
        )
        self._strides = strides

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns the convolution of [examples, height, width, num_inputs]."""
        kernel = self.normalized_kernel(training=training)
        return self._with_bias(tf.nn.conv2d(inputs, kernel, self._strides, "SAME"))


class SpectralDense(SpectralLayer):
    """Fully connected layer; the rows of its matrix are outputs."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        seed: int,
        kernel_initializer: Any = "glorot_uniform",
        use_bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            (num_inputs, num_outputs),
            rows_axis=-1,
            num_biases=num_outputs if use_bias else 0,
            kernel_initializer=kernel_initializer,
            seed=seed,
            name=name,
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns the product of [examples, num_inputs] and the weights."""
        kernel = self.normalized_kernel(training=training)
        return self._with_bias(tf.linalg.matmul(inputs, kernel))


class SpectralEmbedding(SpectralLayer):
    """One vector per class; the rows of its matrix are classes."""

    def __init__(
        self,
        num_classes: int,
        num_outputs: int,
        *,
        seed: int,
        kernel_initializer: Any = "glorot_uniform",
        name: str | None = None,
    ) -> None:
        super().__init__(
            (num_classes, num_outputs),
            rows_axis=0,
            num_biases=0,
            kernel_initializer=kernel_initializer,
            seed=seed,
            name=name,
        )

    def call(self, labels: Any, training: bool = False) -> Any:
        """Returns [examples, num_outputs] for class ids of [examples], integer."""
        return tf.gather(self.normalized_kernel(training=training), labels)
