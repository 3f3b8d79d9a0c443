"""Learning-rate schedules: that of Goyal et al. 2017, and one for LARS."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

REFERENCE_BATCH_SIZE = 256
NUM_EPOCHS = 90
DECAY_EPOCHS = (30, 60, 80)
DECAY_FACTOR = 0.1


@keras.saving.register_keras_serializable(package="replicator_harness")
class GoyalSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear scaling, gradual warmup, step decay.

    The target is ``learning_rate_per_256 * global_batch_size / 256``. Where that is
    above ``learning_rate_per_256`` (a global batch above 256), the rate ramps up
    linearly from ``learning_rate_per_256``, not from zero, over ``lr_warmup_epochs``.
    It falls to a tenth at epochs 30, 60 and 80 of 90, and in a training of another
    length after the same fractions of it.

    Attributes:
      target: Learning rate between the ramp and the first decay.
      lr_warmup_steps: Length of the ramp in steps; 0 without a ramp.
      decay_steps: Steps at which the rate falls.
    """

    def __init__(
        self,
        *,
        global_batch_size: int,
        num_train_examples: int,
        learning_rate_per_256: float = 0.1,
        lr_warmup_epochs: float = 5.0,
        num_epochs: float = NUM_EPOCHS,
    ) -> None:
        self._arguments = {
            "global_batch_size": global_batch_size,
            "num_train_examples": num_train_examples,
            "learning_rate_per_256": learning_rate_per_256,
            "lr_warmup_epochs": lr_warmup_epochs,
            "num_epochs": num_epochs,
        }
        self.initial = learning_rate_per_256
        self.target = learning_rate_per_256 * global_batch_size / REFERENCE_BATCH_SIZE
        steps_per_epoch = num_train_examples / global_batch_size
        ramps = global_batch_size > REFERENCE_BATCH_SIZE
        self.lr_warmup_steps = (
            math.ceil(lr_warmup_epochs * steps_per_epoch) if ramps else 0
        )
        self.decay_steps = tuple(
            math.ceil(epoch * num_epochs / NUM_EPOCHS * steps_per_epoch)
            for epoch in DECAY_EPOCHS
        )

    def __call__(self, step: Any) -> Any:
        """Returns the rate of update number ``step`` (0-based, a scalar tensor)."""
        step = tf.cast(step, tf.float32)
        # Two nodes: the number of decays so far, and their factor.
        num_decays = tf.reduce_sum(tf.cast(step >= self.decay_steps, tf.float32))
        rate = self.target * tf.pow(DECAY_FACTOR, num_decays)
        if not self.lr_warmup_steps:
            return rate
        progress = tf.minimum(step / self.lr_warmup_steps, 1.0)
        return rate - (1.0 - progress) * (self.target - self.initial)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return dict(self._arguments)


# Google's reference for TPUs: global batch below, highest rate, epochs of warmup.
_LARS_RATES = ((16_384, 10.0, 5), (32_768, 25.0, 5), (65_536, 32.0, 14))
_LARS_RATE_ABOVE = (35.6, 40)


@keras.saving.register_keras_serializable(package="replicator_harness")
class PolynomialSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from zero, then falls as the square of the remaining steps.

    Highest rate and warmup follow from the global batch, as in Google's ResNet-50 for
    TPUs with LARS (batches of 16,384 and more). Do not scale it with the batch again.

    Attributes:
      target: The highest rate.
      lr_warmup_steps: Steps until it is reached.
      num_steps: Steps until zero.
    """

    def __init__(
        self, *, global_batch_size: int, num_train_examples: int, num_epochs: float
    ) -> None:
        self._arguments = {
            "global_batch_size": global_batch_size,
            "num_train_examples": num_train_examples,
            "num_epochs": num_epochs,
        }
        self.target, num_warmup_epochs = next(
            (
                (rate, epochs)
                for below, rate, epochs in _LARS_RATES
                if global_batch_size < below
            ),
            _LARS_RATE_ABOVE,
        )
        steps_per_epoch = num_train_examples / global_batch_size
        self.lr_warmup_steps = math.ceil(num_warmup_epochs * steps_per_epoch)
        self.num_steps = max(
            math.ceil(num_epochs * steps_per_epoch), self.lr_warmup_steps + 1
        )

    def __call__(self, step: Any) -> Any:
        """Returns the rate of update number ``step`` (0-based, a scalar tensor)."""
        step = tf.cast(step, tf.float32)
        rising = step / self.lr_warmup_steps
        past = step - self.lr_warmup_steps
        left = 1.0 - past / (self.num_steps - self.lr_warmup_steps)
        falling = tf.square(tf.clip_by_value(left, 0.0, 1.0))
        return self.target * tf.where(past < 0, rising, falling)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return dict(self._arguments)
