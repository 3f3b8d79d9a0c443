"""Loss scaling: keeps small gradients in range for float16 (Micikevicius et al. 2018).

The loss is multiplied by a scale before the gradients are computed, and the gradients
are divided by it after they were averaged over replicas, in their own type. A dynamic
scale starts high: a gradient that is not finite halves it and skips the update; after
``GROWTH_STEPS`` finite updates it doubles. The decision uses the average, so it is
identical on all replicas.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.optimizer.gradients import cast, times, values_of
from replicator.optimizer.keras_saving import OptionVariable
from replicator.optimizer.options import DYNAMIC
from replicator.step import creation
from replicator.step.values import tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2000
_LARGEST_SCALE = 2.0**100
_SCALES: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "replicator_loss_scales", default=None
)


@contextlib.contextmanager
def noted() -> Iterator[list[Any]]:
    """Notes what scales a loss inside, each a function of a loss."""
    found: list[Any] = []
    token = _SCALES.set(found)
    try:
        yield found
    finally:
        _SCALES.reset(token)


def note(scale: Callable[[Any], Any]) -> None:
    """Notes that a loss is scaled."""
    found = _SCALES.get()
    if found is not None:
        found.append(scale)


class LossScale:
    """The loss scale of one optimizer and its counters.

    Attributes:
      is_dynamic: Whether it adapts.
      scale: The factor: a Python float, or a Keras variable of float32.
      num_finite_steps: Steps since the scale changed; a Keras variable if dynamic.
      num_skipped_steps: Steps whose gradients were not finite; a Keras variable if
        dynamic.
    """

    def __init__(self, setting: float | str) -> None:
        self.is_dynamic = setting == DYNAMIC
        self.scale: Any = INITIAL_SCALE if self.is_dynamic else float(setting)
        self.num_finite_steps: Any = None
        self.num_skipped_steps: Any = None

    def build(self) -> list[Any]:
        """Makes the variables of a dynamic scale on first use; returns them."""
        if self.is_dynamic and self.num_finite_steps is None:
            # Before the optimizer's own state: the loss is scaled before the variables
            # that get gradients are known.
            stateful = _tf_distribute.outside_stateless_scopes()
            with tf.init_scope(), creation.allowed(), stateful:
                self.scale = _scalar(INITIAL_SCALE, "float32", "loss_scale")
                self.num_finite_steps = _scalar(0, "int64", "num_finite_steps")
                self.num_skipped_steps = _scalar(0, "int64", "num_skipped_steps")
        if not self.is_dynamic:
            return []
        return [self.scale, self.num_finite_steps, self.num_skipped_steps]

    def entries(self) -> dict[str, OptionVariable]:
        """The variables of a dynamic scale, for files of Keras."""
        initial = (INITIAL_SCALE, 0.0, 0.0)
        return {
            variable.name: OptionVariable(variable=variable, initial=start)
            for variable, start in zip(self.build(), initial, strict=False)
        }

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the scale, in the type of the loss."""
        self.build()
        loss = tensor_of(loss, "scale_loss() takes the loss, a tensor")
        return times(loss, self.value)

    def unscaled(self, grads: Sequence[Any]) -> list[Any]:
        """Divides gradients by the scale."""
        factor = 1.0 / cast(self.value, tf.float64)
        return [times(grad, factor) for grad in grads]

    @property
    def value(self) -> Any:
        """The factor, as a tensor or a Python float."""
        return self.scale.value if self.is_dynamic else self.scale

    def are_finite(self, grads: Sequence[Any]) -> tf.Tensor | None:
        """Whether all gradients are finite, a scalar bool; None for a fixed scale."""
        if not self.is_dynamic:
            return None
        return tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(values_of(grad))) for grad in grads]
        )

    def observe(self, is_finite: tf.Tensor) -> None:
        """Adapts a dynamic scale to whether the gradients of a call are finite."""
        scale = tf.convert_to_tensor(self.scale.value)
        count = tf.convert_to_tensor(self.num_finite_steps.value)
        grows = tf.logical_and(is_finite, count + 1 >= GROWTH_STEPS)
        larger = tf.minimum(scale * 2.0, _LARGEST_SCALE)
        smaller = tf.maximum(scale / 2.0, 1.0)
        self.scale.assign(tf.where(is_finite, tf.where(grows, larger, scale), smaller))
        starts_over = tf.logical_or(grows, tf.logical_not(is_finite))
        self.num_finite_steps.assign(
            tf.where(starts_over, tf.zeros_like(count), count + 1)
        )
        self.num_skipped_steps.assign_add(tf.cast(tf.logical_not(is_finite), tf.int64))


def _scalar(value: float, dtype: str, name: str) -> Any:
    return keras.Variable(
        tf.constant(value, dtype), dtype=dtype, trainable=False, name=name
    )
