"""The learning rate of Vaswani et al. 2017."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="replicator_harness")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """``factor * width^-0.5 * min(step^-0.5, step * warmup^-1.5)`` (section 5.3).

    A linear ramp, then a fall with the square root of the number of updates.
    """

    def __init__(self, *, factor: float, width: int, lr_warmup_steps: int) -> None:
        """Creates the schedule."""
        self._arguments = {
            "factor": factor,
            "width": width,
            "lr_warmup_steps": lr_warmup_steps,
        }

    def __call__(self, step: Any) -> Any:
        """Returns the rate of update number ``step`` (0-based, a scalar tensor)."""
        count = tf.cast(step, tf.float32) + 1.0  # published: from 1
        warmup = float(self._arguments["lr_warmup_steps"])
        scale = self._arguments["factor"] * self._arguments["width"] ** -0.5
        return scale * tf.minimum(count**-0.5, count * warmup**-1.5)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return dict(self._arguments)
