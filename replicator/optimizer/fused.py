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
_SGD_OF_ROWS = "ResourceScatterSub"


class FusedUpdate:
    """An update by fused kernels.

    Its parts can run on different devices: ``prepare`` once on that of the optimizer's
    own variables, ``update_one`` on that of a variable, ``count`` once at the end.
    """

    kernel: str  # The op that updates a variable.
    is_linear = True  # Whether the kernels take gradient sums instead of averages.

    def __init__(self, optimizer: Any, *, is_linear: bool) -> None:
        self.optimizer = optimizer  # The Keras optimizer.
        self.is_linear = self.is_linear and is_linear

    @property
    def uses_count(self) -> bool:
        """Whether an update depends on the number of updates before it."""
        return _tf_compat.schedule_of(self.optimizer) is not None

    def prepare(
        self, num_summed: int, *, counter: Any = None, rate: Any = None
    ) -> Scalars:
        """What the update of every variable needs."""
        # Divided in float64, from which the quotient of any narrower type is rounded.
        rate = tf.cast(self._rate(counter) if rate is None else rate, tf.float64)
        return {"rate": rate / num_summed}

    def _rate(self, counter: Any) -> Any:
        schedule = _tf_compat.schedule_of(self.optimizer)
        if counter is None or schedule is None:
            return self.optimizer.learning_rate
        return schedule(tf.convert_to_tensor(counter))

    def update(
        self, grads: Sequence[Any], variables: Sequence[Any], prepared: Scalars
    ) -> None:
        # Once for each type: a model has hundreds of variables of few types.
        of_type: dict[tf.DType, Scalars] = {}
        for grad, variable in zip(grads, variables, strict=True):
            if grad.dtype not in of_type:
                of_type[grad.dtype] = self._of_type(prepared, grad.dtype)
            self._update_one(grad, variable, of_type[grad.dtype])

    def _of_type(self, prepared: Scalars, dtype: tf.DType) -> Scalars:
        return {"rate": tf.cast(prepared["rate"], dtype)}

    def _update_one(self, grad: Any, variable: Any, scalars: Scalars) -> None:
        raise NotImplementedError

    def count(self, counter: Any = None) -> None:
        """Counts one update; atomic, unlike the method of a Keras variable."""
        counter = self.optimizer.iterations if counter is None else counter
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
    rule: type[FusedUpdate]
    if type(optimizer) is keras.optimizers.SGD:
        rule = _Sgd if optimizer.momentum == 0 else _Momentum
    elif type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
        rule = _Adam
    else:
        return None
    for grad, variable in zip(grads, variables, strict=True):
        is_rows = rule is _Sgd and isinstance(grad, tf.IndexedSlices)
        kernel = _SGD_OF_ROWS if is_rows else rule.kernel
        where = devices.device_type(_tf_compat.unwrap(variable).device)
        if not _tf_dispatch.has_kernel(kernel, where, tf.as_dtype(variable.dtype)):
            return None
    return rule(optimizer, is_linear=all(grad.dtype != tf.float16 for grad in grads))


def _is_plain(grad: Any, variable: Any) -> bool:
    dtype = tf.as_dtype(variable.dtype)
    return (
        isinstance(grad, (tf.Tensor, tf.IndexedSlices))
        and grad.dtype == dtype
        and dtype.is_floating
        and getattr(variable, "constraint", None) is None
        and not getattr(variable, "overwrite_with_gradient", False)
    )


class _Sgd(FusedUpdate):
    kernel = "ResourceApplyGradientDescent"

    def _update_one(self, grad: Any, variable: Any, scalars: Scalars) -> None:
        if isinstance(grad, tf.IndexedSlices):
            tf.raw_ops.ResourceScatterSub(
                resource=_tf_compat.handle(variable),
                indices=grad.indices,
                updates=grad.values * scalars["rate"],
            )
            return
        tf.raw_ops.ResourceApplyGradientDescent(
            var=_tf_compat.handle(variable),
            alpha=scalars["rate"],
            delta=grad,
            use_locking=True,
        )


class _Momentum(FusedUpdate):
    # As in Keras: the slot becomes momentum times itself minus rate times gradient, and
    # the variable adds the slot; with Nesterov, the same step again from the new slot.
    kernel = "ResourceApplyKerasMomentum"

    def _of_type(self, prepared: Scalars, dtype: tf.DType) -> Scalars:
        momentum = keras.ops.cast(self.optimizer.momentum, dtype.name)
        return {**super()._of_type(prepared, dtype), "momentum": momentum}

    def _update_one(self, grad: Any, variable: Any, scalars: Scalars) -> None:
        # The momentum of rows without a gradient decays too, so the update is dense.
        grad = tf.convert_to_tensor(grad)
        optimizer = self.optimizer
        slot = optimizer.momentums[_tf_compat.slot_index(optimizer, variable)]
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=_tf_compat.handle(variable),
            accum=_tf_compat.handle(slot),
            lr=scalars["rate"],
            grad=grad,
            momentum=scalars["momentum"],
            use_nesterov=optimizer.nesterov,
            use_locking=True,
        )


class _Adam(FusedUpdate):
    # Kingma & Ba 2015, algorithm 1 in the efficient order of its section 2, as Keras.
    kernel = "ResourceApplyAdam"
    is_linear = False  # squares of sums are not sums of squares
    uses_count = True

    def prepare(
        self, num_summed: int, *, counter: Any = None, rate: Any = None
    ) -> Scalars:
        del num_summed  # always 1
        rate = self._rate(counter) if rate is None else rate
        counter = self.optimizer.iterations.value if counter is None else counter
        return {
            "rate": tf.convert_to_tensor(rate),
            "step": tf.convert_to_tensor(counter) + 1,
        }

    def _of_type(self, prepared: Scalars, dtype: tf.DType) -> Scalars:
        optimizer, step = self.optimizer, tf.cast(prepared["step"], dtype)
        return {
            **super()._of_type(prepared, dtype),
            # By way of float32, as Keras: float64 would be another number.
            "power_1": tf.pow(keras.ops.cast(optimizer.beta_1, dtype.name), step),
            "power_2": tf.pow(keras.ops.cast(optimizer.beta_2, dtype.name), step),
            "beta_1": tf.constant(optimizer.beta_1, dtype),
            "beta_2": tf.constant(optimizer.beta_2, dtype),
            "epsilon": tf.constant(optimizer.epsilon, dtype),
        }

    def _update_one(self, grad: Any, variable: Any, scalars: Scalars) -> None:
        index = _tf_compat.slot_index(self.optimizer, variable)
        momentums, velocities = _tf_compat.adam_slots(self.optimizer)
        tf.raw_ops.ResourceApplyAdam(
            var=_tf_compat.handle(variable),
            m=_tf_compat.handle(momentums[index]),
            v=_tf_compat.handle(velocities[index]),
            beta1_power=scalars["power_1"],
            beta2_power=scalars["power_2"],
            lr=scalars["rate"],
            beta1=scalars["beta_1"],
            beta2=scalars["beta_2"],
            epsilon=scalars["epsilon"],
            grad=grad,
            use_locking=True,
        )
