"""ResNet-50: the network, its loss, learning rates, and LARS.

Layers are Keras layers; batch normalization over a replica's own batch is fused. Keras'
own layer computes batch statistics from single ops, which makes a training step of
5,300 graph nodes; with the fused kernel it has 2,100, traces and optimises in 60 % of
the time, and every replica pays for its copy. Shapes are known from the constructor, so
nothing is inferred.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from workloads.common import training as training_lib
from workloads.spec import JIT_OFF

if TYPE_CHECKING:
    from .study import ResNet50Config

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
    """The 50-layer residual network of He et al. 2015; float32 logits of images.

    Takes [examples, height, width, 3], returns [examples, classes]. A subclass may have
    other blocks: ``num_blocks = (3, 4, 23, 3)`` is ResNet-101.

    Attributes:
      num_blocks: Bottlenecks of each group; all but the first group halve the image.
      widths: Channels of their 3x3 convolutions; a block returns four times as many.
    """

    num_blocks: tuple[int, ...] = (3, 4, 6, 3)
    widths: tuple[int, ...] = (64, 128, 256, 512)

    def __init__(self, config: ResNet50Config, *, seed: int = 0) -> None:
        """Creates all variables.

        Args:
          config: Number type, version, classes and batch normalization.
          seed: Of the initial values, which are the same on every device.
        """
        super().__init__(name="resnet50", dtype=config.compute_dtype)
        # One seed per kernel, in the order of construction.
        seeds = ((seed, number) for number in itertools.count(1))
        with training_lib.dtype_policy(config.compute_dtype):
            num_channels = self.widths[0]
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
                zip(self.widths, self.num_blocks, strict=True)
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
    """Returns the cross-entropy of each example, in nats.

    Args:
      labels: Classes, [examples].
      logits: [examples, classes], float32.
      label_smoothing: Share of the label that is spread evenly over all classes.
    """
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        even = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        loss = (1.0 - label_smoothing) * loss + label_smoothing * even
    return loss


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


REFERENCE_BATCH_SIZE = 256
NUM_EPOCHS = 90
DECAY_EPOCHS = (30, 60, 80)
DECAY_FACTOR = 0.1


@keras.saving.register_keras_serializable(package="replicator_harness")
@dataclasses.dataclass(kw_only=True, eq=False)
class GoyalSchedule(training_lib.Schedule):
    """Linear scaling, gradual warmup, step decay (Goyal et al. 2017, section 5.1).

    Above a global batch of 256 the rate ramps up from ``learning_rate_per_256``, not
    from zero. It falls to a tenth after 3/9, 6/9 and 8/9 of the training.

    Attributes:
      global_batch_size: Examples of a step, of all replicas.
      num_train_examples: Examples of an epoch.
      learning_rate_per_256: The rate at a global batch of 256; grows with it.
      lr_warmup_epochs: Epochs of the ramp.
      num_epochs: Of the whole training.
    """

    global_batch_size: int
    num_train_examples: int
    learning_rate_per_256: float = 0.1
    lr_warmup_epochs: float = 5.0
    num_epochs: float = NUM_EPOCHS

    def __post_init__(self) -> None:
        batch_size = self.global_batch_size
        self.target = self.learning_rate_per_256 * batch_size / REFERENCE_BATCH_SIZE
        steps_per_epoch = self.num_train_examples / batch_size
        self.lr_warmup_steps = 0
        if batch_size > REFERENCE_BATCH_SIZE:
            self.lr_warmup_steps = math.ceil(self.lr_warmup_epochs * steps_per_epoch)
        self.decay_steps = tuple(
            math.ceil(epoch * self.num_epochs / NUM_EPOCHS * steps_per_epoch)
            for epoch in DECAY_EPOCHS
        )

    def __call__(self, step: Any) -> Any:
        step = tf.cast(step, tf.float32)
        # Two nodes: the number of decays so far, and their factor.
        num_decays = tf.reduce_sum(tf.cast(step >= self.decay_steps, tf.float32))
        rate = self.target * tf.pow(DECAY_FACTOR, num_decays)
        if not self.lr_warmup_steps:
            return rate
        progress = tf.minimum(step / self.lr_warmup_steps, 1.0)
        return rate - (1.0 - progress) * (self.target - self.learning_rate_per_256)


# Google's reference for TPUs: global batch below, highest rate, epochs of warmup.
_LARS_RATES = (
    (16_384, 10.0, 5),
    (32_768, 25.0, 5),
    (65_536, 32.0, 14),
    (math.inf, 35.6, 40),
)


@keras.saving.register_keras_serializable(package="replicator_harness")
@dataclasses.dataclass(kw_only=True, eq=False)
class PolynomialSchedule(training_lib.Schedule):
    """Google's schedule of LARS for TPUs: rises linearly, falls quadratically.

    Its highest rate and warmup follow from the global batch: do not scale it again.

    Attributes:
      global_batch_size: Examples of a step, of all replicas.
      num_train_examples: Examples of an epoch.
      num_epochs: Of the whole training, at whose end the rate is zero.
    """

    global_batch_size: int
    num_train_examples: int
    num_epochs: float

    def __post_init__(self) -> None:
        self.target, num_warmup_epochs = next(
            rates for below, *rates in _LARS_RATES if self.global_batch_size < below
        )
        steps_per_epoch = self.num_train_examples / self.global_batch_size
        self.lr_warmup_steps = math.ceil(num_warmup_epochs * steps_per_epoch)
        self.num_steps = max(
            math.ceil(self.num_epochs * steps_per_epoch), self.lr_warmup_steps + 1
        )

    def __call__(self, step: Any) -> Any:
        step = tf.cast(step, tf.float32)
        rising = step / self.lr_warmup_steps
        past = step - self.lr_warmup_steps
        left = 1.0 - past / (self.num_steps - self.lr_warmup_steps)
        falling = tf.square(tf.clip_by_value(left, 0.0, 1.0))
        return self.target * tf.where(past < 0, rising, falling)


_VECTOR = 1  # rank of biases and of the scales and offsets of batch norm


@keras.saving.register_keras_serializable(package="replicator_harness")
class LARS(keras.optimizers.Optimizer):
    """Momentum whose rate is scaled, per variable, by the ratio of two norms.

    For a kernel w with gradient g, learning rate r and weight decay d:

        ratio = trust * |w| / (|g| + d |w|)      (1 where a norm is zero)
        v <- momentum * v + ratio * r * (g + d w)
        w <- w - v

    Biases and batch-norm parameters (rank 1) have ratio 1 and no decay, as in Google's
    reference for TPUs. The rate is part of v, so a change of it needs no correction.

    Args:
      learning_rate: A number or a schedule.
      momentum: The share of v that a step keeps.
      decay: The L2 factor on kernels.
      trust: The factor of the ratio.
      name: Of the optimizer.
      **options: Those of ``keras.optimizers.Optimizer``.
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        *,
        momentum: float = 0.9,
        decay: float = 1e-4,
        trust: float = 1e-3,
        name: str = "lars",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum
        self.decay = decay
        self.trust = trust
        self._velocities: list[Any] = []

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self._velocities = [
            self.add_variable_from_reference(variable, name="velocity")
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = tf.cast(learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        velocity = self._velocities[self._get_variable_index(variable)]
        if len(variable.shape) > _VECTOR:
            weights = tf.convert_to_tensor(variable)
            of_weights, of_gradient = tf.norm(weights), tf.norm(gradient)
            ratio = tf.where(
                (of_weights > 0) & (of_gradient > 0),
                self.trust * of_weights / (of_gradient + self.decay * of_weights),
                tf.ones_like(of_weights),
            )
            rate = rate * ratio
            gradient = gradient + self.decay * weights
        moved = self.momentum * tf.convert_to_tensor(velocity) + rate * gradient
        self.assign(velocity, moved)
        self.assign_sub(variable, moved)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "decay": self.decay,
            "trust": self.trust,
        }
