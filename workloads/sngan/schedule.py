"""A learning rate that falls linearly to zero, from some step on."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="replicator_harness")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Keeps a rate until ``decay_start`` of all steps, then falls to zero at the end.

    As in the published code of SN-GAN: from 400,000 to 450,000 updates of the generator
    on ImageNet, from the beginning on CIFAR-10.
    """

    def __init__(
        self, learning_rate: float, *, num_steps: int, decay_start: float
    ) -> None:
        """Creates the schedule."""
        self._arguments = {
            "learning_rate": learning_rate,
            "num_steps": num_steps,
            "decay_start": decay_start,
        }

    def __call__(self, step: Any) -> Any:
        """Returns the rate of update number ``step`` (0-based, a scalar tensor)."""
        rate, start = self._arguments["learning_rate"], self._arguments["decay_start"]
        if start >= 1:
            return tf.constant(rate, tf.float32)
        share = tf.cast(step, tf.float32) / self._arguments["num_steps"]
        left = (1.0 - share) / (1.0 - start)
        return rate * tf.clip_by_value(left, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return dict(self._arguments)
