"""Base of all forms of Inception v3: input, output and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads.metrics.extractors import digests
from workloads.metrics.extractors.base import FeatureExtractor

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    import numpy as np

IMAGE_SIZE = 299
NUM_FEATURES = 2048
LEAST_CLASSES = 1000


class InceptionExtractor(FeatureExtractor):
    """Inception v3: the 2,048 values of the last pooling and the class logits."""

    name = "inception"
    num_features = NUM_FEATURES

    def __init__(
        self,
        path: pathlib.Path,
        *,
        prepare: Callable[[tf.Tensor], tf.Tensor],
        preparation: str,
        network: Callable[[tf.Tensor], tuple[Any, Any]],
    ) -> None:
        """Creates the extractor and runs it once, on a black image.

        Args:
          path: The weights, for the digest and for messages.
          prepare: From uint8 [n, height, width, 3] to the input of ``network``.
          preparation: What ``prepare`` does, in words.
          network: Returns features and logits of any rank.

        Raises:
          ValueError: The network has other outputs than Inception v3.
        """
        self.digest = digests.of_path(path)
        self._prepare = prepare
        self._preparation = preparation
        self._network = network
        self._forward = tf.function(self._features_and_logits)
        black = tf.zeros([1, IMAGE_SIZE, IMAGE_SIZE, 3], tf.uint8)
        features, logits = self._forward(black)
        if features.shape[1] != NUM_FEATURES or logits.shape[1] < LEAST_CLASSES:
            raise ValueError(
                f"{str(path)!r} gives {features.shape[1]} features and "
                f"{logits.shape[1]} logits: Inception v3 has {NUM_FEATURES} and at "
                f"least {LEAST_CLASSES}; point to weights that include the classifier"
            )

    def preparation(self, image_shape: tuple[int, ...]) -> str:
        """Describes how images become 299 x 299 colours."""
        height, width, num_channels = image_shape
        return f"uint8 {height} x {width} x {num_channels}, {self._preparation}"

    def _features_and_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if images.shape[-1] == 1:
            images = tf.repeat(images, 3, axis=-1)
        features, logits = self._network(self._prepare(images))
        return _flat(features), _flat(logits)

    def _extract_batch(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        features, logits = self._forward(tf.constant(images))
        return features.numpy(), logits.numpy()


PREPARATION_2015 = (
    "299 x 299 bilinear as TensorFlow 1 (corners at pixel 0, no antialiasing), "
    "(x - 128) / 128"
)


def prepare_2015(images: tf.Tensor) -> tf.Tensor:
    """Resizes and scales images like the graph of 2015."""
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.cast(images, tf.float32),
        size=[IMAGE_SIZE, IMAGE_SIZE],
        align_corners=False,
        half_pixel_centers=False,
    )
    return (resized - 128.0) / 128.0


def _flat(values: tf.Tensor) -> tf.Tensor:
    values = tf.cast(values, tf.float32)
    return tf.reshape(values, [tf.shape(values)[0], _size(values)])


def _size(values: tf.Tensor) -> int:
    """Values per example; the static shape of pools and logits is always known."""
    size = 1
    for length in values.shape[1:]:
        size *= length
    return size
