"""Private methods of Keras for batch normalization: its average, a model's layers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable


OF_NO_EXAMPLE = "replicator_statistics_of_no_example"
"""Name of what stands for the statistics of a batch without rows: whatever it is, no
row is normalized by it."""


@functools.cache
def keep_statistics_of_nothing(is_in_step: Callable[[], bool]) -> None:
    """Lets Keras' batch normalization take batches without examples (test_uneven).

    In the last step of an epoch a replica may have no example. The mean of nothing is
    NaN, which would become the moving statistics and, through the gradient of
    ``gamma``, every weight. Such a replica uses and keeps its moving statistics, unless
    the layer is synchronized: those of the batches of all replicas are never nothing.
    """
    layer = keras.layers.BatchNormalization
    of_keras = layer._moments  # noqa: SLF001

    def moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = of_keras(self, inputs, mask)
        is_of_all = self.synchronized and mask is None
        if is_of_all or inputs.shape[0] is not None or not is_in_step():
            return mean, variance
        has_examples = tf.size(inputs) > 0

        def chosen(new: tf.Tensor, moving: Any) -> tf.Tensor:
            kept = tf.cast(moving.value, new.dtype)
            return tf.where(has_examples, new, tf.identity(kept, name=OF_NO_EXAMPLE))

        return (
            chosen(mean, self.moving_mean),
            chosen(variance, self.moving_variance),
        )

    layer._moments = moments  # noqa: SLF001


def layers_of(model: Any) -> list[Any]:
    """A model of Keras or tf_keras and all layers within it (test_fit_losses)."""
    return list(model._flatten_layers())  # noqa: SLF001
