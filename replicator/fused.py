"""TensorFlow's fused update kernels in place of Keras updates of the same result.

A Keras 3 update is several ops with a temporary each; the kernels below read and write
each array once. They keep their state in the Keras optimizer's own slots, so a
checkpoint does not know the difference. ``find`` returns None wherever the result would
not be the same; the caller then uses the wrapped optimizer.

Where the update is linear in the gradient (plain SGD, momentum), the kernels take the
gradient *sum* over R replicas and a learning rate divided by R: the same product with
one pass less over every gradient.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from replicator import _tf_compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Apply = Callable[[Sequence[tf.Tensor], Sequence[Any], int], None]

_PLAIN_OPTIONS = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
_KERNEL_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FusedUpdate:
    """An update by fused kernels.

    Attributes:
      is_linear: Whether the kernels take gradient sums instead of averages.
      apply: Takes gradients, variables and, for sums, the number of summands (else 1);
        updates the variables and the iteration counter.
    """

    is_linear: bool
    apply: Apply


def find(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]
) -> FusedUpdate | None:
    """Returns the fused update of ``optimizer``, or None where there is none.

    Args:
      optimizer: A built Keras optimizer.
      grads: One gradient per variable.
      variables: Keras or TensorFlow variables.

    Returns:
      The update that has the same result as ``optimizer.apply`` on averages.
    """
    if getattr(optimizer, "use_ema", False) or any(
        getattr(optimizer, option, None) is not None for option in _PLAIN_OPTIONS
    ):
        return None
    if not all(map(_is_plain, grads, variables)):
        return None
    # Subclasses may change the update rule, so only the exact classes qualify.
    if type(optimizer) is keras.optimizers.SGD:
        apply = _sgd(optimizer) if optimizer.momentum == 0 else _momentum(optimizer)
        return FusedUpdate(is_linear=True, apply=apply)
    if type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
        return FusedUpdate(is_linear=False, apply=_adam(optimizer))
    return None


def _is_plain(grad: Any, variable: Any) -> bool:
    dtype = tf.as_dtype(variable.dtype)
    return (
        isinstance(grad, tf.Tensor)
        and grad.dtype == dtype
        and dtype in _KERNEL_DTYPES
        and getattr(variable, "constraint", None) is None
        and not getattr(variable, "overwrite_with_gradient", False)
    )


def _sgd(optimizer: Any) -> Apply:
    def update(
        grads: Sequence[tf.Tensor], variables: Sequence[Any], num_summed: int
    ) -> None:
        rate = optimizer.learning_rate / num_summed
        for grad, variable in zip(grads, variables, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=_tf_compat.handle(variable),
                alpha=tf.cast(rate, grad.dtype),
                delta=grad,
            )
        optimizer.iterations.assign_add(1)

    return update


def _momentum(optimizer: Any) -> Apply:
    # As in Keras: the slot becomes momentum times itself minus rate times gradient, and
    # the variable adds the slot; with Nesterov, the same step again from the new slot.
    def update(
        grads: Sequence[tf.Tensor], variables: Sequence[Any], num_summed: int
    ) -> None:
        rate = optimizer.learning_rate / num_summed
        for grad, variable in zip(grads, variables, strict=True):
            slot = optimizer.momentums[_tf_compat.slot_index(optimizer, variable)]
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=_tf_compat.handle(variable),
                accum=_tf_compat.handle(slot),
                lr=tf.cast(rate, grad.dtype),
                grad=grad,
                momentum=keras.ops.cast(optimizer.momentum, grad.dtype.name),
                use_nesterov=optimizer.nesterov,
            )
        optimizer.iterations.assign_add(1)

    return update


def _adam(optimizer: Any) -> Apply:
    # Kingma & Ba 2015, algorithm 1 in the efficient order of its section 2, as Keras.
    def update(
        grads: Sequence[tf.Tensor], variables: Sequence[Any], num_summed: int
    ) -> None:
        del num_summed  # always 1: squares of sums are not sums of squares
        rate = optimizer.learning_rate
        for grad, variable in zip(grads, variables, strict=True):
            index = _tf_compat.slot_index(optimizer, variable)
            dtype = grad.dtype
            step = tf.cast(optimizer.iterations.value + 1, dtype)
            beta_1 = tf.constant(optimizer.beta_1, dtype)
            beta_2 = tf.constant(optimizer.beta_2, dtype)
            tf.raw_ops.ResourceApplyAdam(
                var=_tf_compat.handle(variable),
                m=_tf_compat.handle(_tf_compat.adam_slots(optimizer)[0][index]),
                v=_tf_compat.handle(_tf_compat.adam_slots(optimizer)[1][index]),
                # By way of float32, as Keras: float64 would be another number.
                beta1_power=tf.pow(keras.ops.cast(optimizer.beta_1, dtype.name), step),
                beta2_power=tf.pow(keras.ops.cast(optimizer.beta_2, dtype.name), step),
                lr=tf.cast(rate, dtype),
                beta1=beta_1,
                beta2=beta_2,
                epsilon=tf.constant(optimizer.epsilon, dtype),
                grad=grad,
            )
        optimizer.iterations.assign_add(1)

    return update
