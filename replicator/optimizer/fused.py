"""TensorFlow's fused update kernels in place of Keras updates of the same result.

A Keras 3 update is several ops with a temporary each; the kernels below read and write
each array once. They keep their state in the Keras optimizer's own slots, so
checkpoints are the same. ``find`` returns None if the result would differ, or if a
device has no such kernel for a variable's type; the caller then uses the wrapped
optimizer.

Where the update is linear in the gradient (plain SGD, momentum), the kernels take the
gradient *sum* over R replicas and a learning rate divided by R: the same product with
one pass less over every gradient. Not of float16, whose sum overflows where the average
does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.core import devices
from replicator.optimizer.options import CLIPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    Scalars = dict[str, tf.Tensor]

_PLAIN_OPTIONS = (
    *CLIPS,
    "weight_decay",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
# The last is the update of rows.
_SGD, _SGD_OF_ROWS = "ResourceApplyGradientDescent", "ResourceScatterSub"
# As in Keras: the slot becomes momentum times itself minus rate times gradient, and the
# variable adds the slot; with Nesterov, the same step again from the new slot.
_MOMENTUM = "ResourceApplyKerasMomentum"
# Kingma & Ba 2015, algorithm 1 in the efficient order of its section 2, as Keras.
_ADAM = "ResourceApplyAdam"


class FusedUpdate:
    """An update by fused kernels.

    Its parts can run on different devices: ``prepare`` once beside the optimizer's own
    variables, ``update`` beside the variables that it changes, ``count`` at the end.
    """

    def __init__(self, optimizer: Any, kernel: str, *, is_linear: bool) -> None:
        self._optimizer = optimizer  # The Keras optimizer.
        self._kernel = kernel  # The op that updates a variable.
        # Whether the kernels take gradient sums instead of averages: squares of sums
        # are not sums of squares.
        self.is_linear = is_linear and kernel != _ADAM

    @property
    def uses_count(self) -> bool:
        """Whether an update depends on the number of updates before it."""
        has_schedule = _tf_compat.schedule_of(self._optimizer) is not None
        return self._kernel == _ADAM or has_schedule

    def prepare(
        self, num_summed: int, *, counter: Any = None, rate: Any = None
    ) -> Scalars:
        """What the update of every variable needs."""
        schedule = _tf_compat.schedule_of(self._optimizer)
        if rate is None and counter is not None and schedule is not None:
            rate = schedule(tf.convert_to_tensor(counter))
        elif rate is None:
            rate = self._optimizer.learning_rate
        if self._kernel == _ADAM:
            counter = self._optimizer.iterations.value if counter is None else counter
            return {
                "rate": tf.convert_to_tensor(rate),
                "step": tf.convert_to_tensor(counter) + 1,
            }
        # Divided in float64, from which the quotient of any narrower type is rounded.
        return {"rate": tf.cast(rate, tf.float64) / num_summed}

    def update(
        self, grads: Sequence[Any], variables: Sequence[Any], prepared: Scalars
    ) -> None:
        # Once for each type: a model has hundreds of variables of few types.
        of_type: dict[tf.DType, dict[str, Any]] = {}
        for grad, variable in zip(grads, variables, strict=True):
            if grad.dtype not in of_type:
                of_type[grad.dtype] = self._numbers(prepared, grad.dtype)
            self._update_one(grad, variable, of_type[grad.dtype])

    def _numbers(self, prepared: Scalars, dtype: tf.DType) -> dict[str, Any]:
        """The arguments of the kernel that are alike for all variables of a type."""
        optimizer, rate = self._optimizer, tf.cast(prepared["rate"], dtype)
        if self._kernel == _SGD:
            return {"alpha": rate}
        if self._kernel == _MOMENTUM:
            momentum = keras.ops.cast(optimizer.momentum, dtype.name)
            return {
                "lr": rate,
                "momentum": momentum,
                "use_nesterov": optimizer.nesterov,
            }
        step = tf.cast(prepared["step"], dtype)
        return {
            "lr": rate,
            # By way of float32, as Keras: float64 would be another number.
            "beta1_power": tf.pow(keras.ops.cast(optimizer.beta_1, dtype.name), step),
            "beta2_power": tf.pow(keras.ops.cast(optimizer.beta_2, dtype.name), step),
            "beta1": tf.constant(optimizer.beta_1, dtype),
            "beta2": tf.constant(optimizer.beta_2, dtype),
            "epsilon": tf.constant(optimizer.epsilon, dtype),
        }

    def _update_one(self, grad: Any, variable: Any, numbers: dict[str, Any]) -> None:
        optimizer, given = self._optimizer, {"var": _tf_compat.handle(variable)}
        if self._kernel == _SGD and isinstance(grad, tf.IndexedSlices):
            tf.raw_ops.ResourceScatterSub(
                resource=given["var"],
                indices=grad.indices,
                updates=grad.values * numbers["alpha"],
            )
            return
        slots: dict[str, Any] = {}
        if self._kernel == _MOMENTUM:
            slots = {"accum": optimizer.momentums}
        elif self._kernel == _ADAM:
            slots = dict(zip("mv", _tf_compat.adam_slots(optimizer), strict=True))
        for name, of_variables in slots.items():
            slot = of_variables[_tf_compat.slot_index(optimizer, variable)]
            given[name] = _tf_compat.handle(slot)
        # The momentum of rows without a gradient decays too, so the update is dense.
        given["delta" if self._kernel == _SGD else "grad"] = tf.convert_to_tensor(grad)
        getattr(tf.raw_ops, self._kernel)(**given, **numbers, use_locking=True)

    def count(self, counter: Any = None) -> None:
        """Counts one update; atomic, unlike the method of a Keras variable."""
        counter = self._optimizer.iterations if counter is None else counter
        tf.raw_ops.AssignAddVariableOp(
            resource=_tf_compat.handle(counter),
            value=tf.ones((), tf.as_dtype(counter.dtype)),
        )


def find(
    optimizer: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
    *,
    takes_sparse: bool = False,
) -> FusedUpdate | None:
    """Returns the fused update of ``optimizer``, or None if there is none."""
    if getattr(optimizer, "use_ema", False) or any(
        getattr(optimizer, option, None) is not None for option in _PLAIN_OPTIONS
    ):
        return None
    if not all(map(_is_plain, grads, variables)):
        return None
    # Subclasses may change the update rule, so only the exact classes qualify.
    is_sparse = any(isinstance(grad, tf.IndexedSlices) for grad in grads)
    if is_sparse and not (takes_sparse and type(optimizer) is keras.optimizers.SGD):
        return None  # Keras' Adam squares duplicate rows separately
    if type(optimizer) is keras.optimizers.SGD:
        kernel = _SGD if optimizer.momentum == 0 else _MOMENTUM
    elif type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
        kernel = _ADAM
    else:
        return None
    for grad, variable in zip(grads, variables, strict=True):
        is_rows = kernel == _SGD and isinstance(grad, tf.IndexedSlices)
        used, dtype = _SGD_OF_ROWS if is_rows else kernel, tf.as_dtype(variable.dtype)
        where = devices.device_type(_tf_compat.unwrap(variable).device)
        if not _tf_dispatch.has_kernel(used, where, dtype):
            return None
    is_linear = all(grad.dtype != tf.float16 for grad in grads)
    return FusedUpdate(optimizer, kernel, is_linear=is_linear)


def _is_plain(grad: Any, variable: Any) -> bool:
    dtype = tf.as_dtype(variable.dtype)
    return (
        isinstance(grad, (tf.Tensor, tf.IndexedSlices))
        and grad.dtype == dtype
        and dtype.is_floating
        and getattr(variable, "constraint", None) is None
        and not getattr(variable, "overwrite_with_gradient", False)
    )
