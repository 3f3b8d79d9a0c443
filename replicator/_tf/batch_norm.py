"""How Keras' batch normalization averages a batch: a private method, and its caller."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.cache
def keep_statistics_of_nothing(is_in_step: Callable[[], bool]) -> None:
    """Lets Keras' batch normalization take batches without examples (test_uneven).

    In the last step of an epoch a replica may have no example. The mean of nothing is
    NaN, which would become the moving statistics and, through the gradient of
    ``gamma``, every weight. Such a replica keeps its moving statistics. It does not
    use them: gradients would seem to depend on what differs between replicas.

    Args:
      is_in_step: Whether a step is being traced; the layer is Keras' own elsewhere.
    """
    layer = keras.layers.BatchNormalization
    moments_of_keras, call_of_keras = layer._moments, layer.call  # noqa: SLF001

    def may_be_empty(inputs: Any) -> bool:
        return inputs.shape[0] is None and is_in_step()

    def moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = moments_of_keras(self, inputs, mask)
        if may_be_empty(inputs):
            has_examples = tf.size(inputs) > 0
            mean = tf.where(has_examples, mean, tf.zeros_like(mean))
            variance = tf.where(has_examples, variance, tf.ones_like(variance))
        return mean, variance

    @functools.wraps(call_of_keras)
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not (training and self.trainable and may_be_empty(inputs)):
            return call_of_keras(self, inputs, training=training, mask=mask)
        statistics = self.moving_mean, self.moving_variance
        before = [tf.identity(moving.value) for moving in statistics]
        outputs = call_of_keras(self, inputs, training=training, mask=mask)
        for moving, old in zip(statistics, before, strict=True):
            moving.assign(tf.where(tf.size(inputs) > 0, moving.value, old))
        return outputs

    layer._moments, layer.call = moments, call  # noqa: SLF001
