"""ResNet-50, architecture only.

Layers are Keras layers; batch normalization over a replica's own batch is fused. Keras'
own layer computes batch statistics from single ops, which makes a training step of
5,300 graph nodes; with the fused kernel it has 2,100, traces and optimises in 60 % of
the time, and every replica pays for its copy. Shapes are known from the constructor, so
nothing is inferred.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from workloads.common import training as training_lib
from workloads.spec import JIT_OFF

if TYPE_CHECKING:
    from .study import ResNet50Config

NUM_BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
EPSILON = 1e-5
_FC_STDDEV = 0.01


def normal(stddev: float, seed: tuple[int, ...]) -> Callable[..., Any]:
    """Normal values from NumPy, the same on every device; He et al. do not truncate."""

    def initialize(shape: Any, dtype: Any = None) -> Any:
        generator = np.random.Generator(np.random.SFC64(seed))
        values = generator.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(stddev)
        return tf.convert_to_tensor(values, dtype=dtype or "float32")

    return initialize


def padding(kernel_size: int, strides: int) -> Any:
    """Returns the padding of a convolution or pooling: the same on both sides.

    A window of stride 2 on an even size needs an odd number of padded pixels in all:
    TensorFlow's SAME puts none before and the rest behind, the published network the
    same number on both sides.
    """
    pad = (kernel_size - 1) // 2
    if strides == 1 or not pad:
        return "SAME"
    return [[0, 0], [pad, pad], [pad, pad], [0, 0]]


class ConvBatchNorm(keras.layers.Layer):
    """Convolution without bias, then batch normalization."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        kernel_size: int,
        strides: int,
        seeds: Iterator[tuple[int, int]],
        statistics: str = "local",
        gamma: str = "ones",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.strides, self.kernel_size = strides, kernel_size
        self._padding = padding(kernel_size, strides)
        fan_in = kernel_size * kernel_size * num_inputs
        self.kernel = self.add_weight(
            name="kernel",
            shape=(kernel_size, kernel_size, num_inputs, num_outputs),
            initializer=normal(math.sqrt(2.0 / fan_in), next(seeds)),
        )
        self.norm = training_lib.batch_norm(
            statistics, num_outputs, epsilon=EPSILON, gamma_initializer=gamma
        )
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        padding = self._padding
        if padding != "SAME":
            # Padded by hand: with explicit padding, gradients of kernels do not run in
            # oneDNN, which takes a third longer in float32 and five times in bfloat16.
            inputs, padding = tf.pad(inputs, padding), "VALID"
        outputs = tf.nn.conv2d(inputs, self.kernel, self.strides, padding)
        return self.norm(outputs, training=training)


class Bottleneck(keras.layers.Layer):
    """Residual block: 1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(
        self,
        num_inputs: int,
        width: int,
        *,
        strides: int,
        config: ResNet50Config,
        seeds: Iterator[tuple[int, int]],
        name: str,
    ) -> None:
        super().__init__(name=name)
        first, second = (strides, 1) if config.version == "v1" else (1, strides)
        num_outputs = EXPANSION * width
        last_gamma = "zeros" if config.zero_gamma else "ones"
        conv = functools.partial(
            ConvBatchNorm, statistics=config.batch_norm, seeds=seeds
        )
        self.convs = [
            conv(num_inputs, width, kernel_size=1, strides=first),
            conv(width, width, kernel_size=3, strides=second),
            conv(width, num_outputs, kernel_size=1, strides=1, gamma=last_gamma),
        ]
        self.projection = (
            None
            if num_inputs == num_outputs
            else conv(num_inputs, num_outputs, kernel_size=1, strides=strides)
        )
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        shortcut = inputs
        if self.projection is not None:
            shortcut = self.projection(inputs, training=training)
        outputs = tf.nn.relu(self.convs[0](inputs, training=training))
        outputs = tf.nn.relu(self.convs[1](outputs, training=training))
        outputs = self.convs[2](outputs, training=training)
        return tf.nn.relu(outputs + shortcut)


class ResNet50(keras.Model):
    """The 50-layer residual network of He et al. 2015; float32 logits of images."""

    def __init__(self, config: ResNet50Config, *, seed: int = 0) -> None:
        super().__init__(name="resnet50", dtype=config.compute_dtype)
        # One seed per kernel, in the order of construction.
        seeds = ((seed, number) for number in itertools.count(1))
        with training_lib.dtype_policy(config.compute_dtype):
            num_channels = WIDTHS[0]
            self.stem = ConvBatchNorm(
                3,
                num_channels,
                kernel_size=7,
                strides=2,
                statistics=config.batch_norm,
                seeds=seeds,
                name="stem",
            )
            self.blocks = []
            for group, (width, count) in enumerate(
                zip(WIDTHS, NUM_BLOCKS, strict=True)
            ):
                for index in range(count):
                    block = Bottleneck(
                        num_channels,
                        width,
                        strides=2 if group and not index else 1,
                        config=config,
                        seeds=seeds,
                        name=f"group_{group}_block_{index}",
                    )
                    self.blocks.append(block)
                    num_channels = EXPANSION * width
            self.classifier = keras.layers.Dense(
                config.num_classes,
                kernel_initializer=normal(_FC_STDDEV, next(seeds)),
                name="classifier",
            )
            self.classifier.build((None, num_channels))
        self._pads_pooling = config.jit != JIT_OFF
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        features = tf.nn.relu(self.stem(inputs, training=training))
        pool_padding = padding(3, 2)
        if self._pads_pooling:
            lowest = features.dtype.min  # it is never the largest of a window
            features = tf.pad(features, pool_padding, constant_values=lowest)
            pool_padding = "VALID"
        features = tf.nn.max_pool2d(features, 3, 2, padding=pool_padding)
        for block in self.blocks:
            features = block(features, training=training)
        logits = self.classifier(tf.reduce_mean(features, axis=(1, 2)))
        return tf.cast(logits, tf.float32)


def softmax_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, *, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns the cross-entropy of each example, in nats."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        even = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        loss = (1.0 - label_smoothing) * loss + label_smoothing * even
    return loss


def add_weight_decay(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    weight_decay: float | tf.Tensor,
) -> list[Any]:
    """Returns ``g + weight_decay * w`` for kernels, ``g`` for vectors, as published.

    It is the gradient of the L2 penalty, without the cost of that sum.
    """
    if isinstance(weight_decay, float) and not weight_decay:
        return list(gradients)
    return [
        gradient + weight_decay * tf.convert_to_tensor(variable)
        if len(variable.shape) > 1
        else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def products(model: ResNet50, image_size: int) -> list[int]:
    """Returns the multiply-adds of the layers for one image, of the first one first."""
    size = image_size // 2
    found = [training_lib.products_of(model.stem, size)]
    size //= 2
    for block in model.blocks:
        for conv in block.convs:
            size //= conv.strides
            found.append(training_lib.products_of(conv, size))
        if block.projection is not None:
            found.append(training_lib.products_of(block.projection, size))
    return [*found, training_lib.products_of(model.classifier)]
