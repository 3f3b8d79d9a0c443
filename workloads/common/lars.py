"""Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017), for large batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

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
        """Creates the optimizer."""
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum
        self.decay = decay
        self.trust = trust
        self._velocities: list[Any] = []

    def build(self, variables: Any) -> None:
        """Creates one v per variable, initially zero."""
        if self.built:
            return
        super().build(variables)
        self._velocities = [
            self.add_variable_from_reference(variable, name="velocity")
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable; see the class."""
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
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "decay": self.decay,
            "trust": self.trust,
        }
