"""Stages of gradients: sums, scale, limits and owners, and the update by kernels."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator._tf import distribute as _tf_distribute
from replicator._tf.keras_parts import SidecarState
from replicator.collectives.differentiable import values_of, with_values
from replicator.collectives.kinds import AllReduce
from replicator.collectives.transport import check_compression
from replicator.core import context as context_lib
from replicator.core import devices
from replicator.core.step import at_lines, line_of, tensor_of
from replicator.errors import OptimizerOptionError
from replicator.optimizer.options import CLIPS, DYNAMIC, OptimizerOptions
from replicator.variables.kinds import declare_partial

if TYPE_CHECKING:
    from replicator.variables.table import Ownership

    Scalars = dict[str, tf.Tensor]


# Duplicate rows of a sparse gradient mean the sum of their values. Updates that are not
# linear (a square of the gradient, a norm, a sign) need it first, or the result would
# differ from that of the dense gradient; Keras does not sum them.


def sum_duplicates(grad: Any) -> Any:
    """Sums the rows of a sparse gradient that have the same index."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    indices, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def clip_by_global_norm(grads: Sequence[Any], limit: float) -> list[Any]:
    """Scales gradients to a global norm of at most ``limit`` (Pascanu et al. 2013)."""
    unique = list(map(sum_duplicates, grads))
    return list(tf.clip_by_global_norm(unique, limit)[0])


def scaled_gradient(grad: Any, factor: Any) -> Any:
    """Multiplies a dense or sparse gradient by a scalar, in its own type."""
    values = values_of(grad)
    return with_values(grad, values * cast_number(factor, values.dtype))


def cast_number(number: Any, dtype: tf.DType) -> tf.Tensor:
    """A tensor or Python number in another type; ``tf.cast`` makes a float 32 bits."""
    if tf.is_tensor(number) or hasattr(number, "dtype"):
        return tf.cast(number, dtype)
    return tf.constant(number, dtype)


# The file is that of the optimizer inside, number by number, so that it can be loaded
# without this library, and the other way round. State of options (a dynamic loss scale,
# an unfinished accumulation) is in a group beside it, which Keras skips if nobody asks.


class OptionVariable(NamedTuple):
    variable: Any  # A Keras variable.
    initial: float = 0.0  # What all its elements are at first.


class OptionsState(SidecarState):
    """The state that options of ``wrap_optimizer`` add to a Keras optimizer."""

    def __init__(self, scale: LossScale | None, sums: Accumulation | None) -> None:
        self._scale, self._sums = scale, sums

    @property
    def entries(self) -> dict[str, OptionVariable]:
        """By name. Keras' own names would differ between processes."""
        scale, sums = self._scale, self._sums
        return (scale.state if scale else {}) | (sums.state if sums else {})

    def save_own_variables(self, store: Any) -> None:
        sums = self._sums
        count = int(sums.count) if sums and sums.is_per_replica and sums.state else 0
        if count:  # which a file of Keras cannot hold
            raise OptimizerOptionError(
                f"Keras cannot save the gradients of {count} calls that each replica "
                "has accumulated since the last update; save after a call that "
                "updates, or by repl.make_checkpoint_manager()"
            )
        for name, entry in self.entries.items():
            store[name] = entry.variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what there is; the rest starts anew, as without the option before."""
        saved = set(store.keys())
        for name, entry in self.entries.items():
            shape, dtype = entry.variable.shape, entry.variable.dtype
            start = np.full(shape, entry.initial, dtype)
            entry.variable.assign(store[name] if name in saved else start)


# One update per k calls of ``apply_gradients`` has the result of one batch k times as
# large. Replicas with separate memories each sum their own gradients, and only the call
# that updates averages the sums; only their mean counts, by which checkpoints replace
# them. Where replicas share one memory, each call averages, and there is one sum.


class Accumulation:
    """Sums of gradients since the last update, as state of a Keras optimizer."""

    def __init__(self, num_steps: int, *, is_per_replica: bool = False) -> None:
        self.num_steps = num_steps  # Calls per update.
        self.is_per_replica = is_per_replica  # Whether each replica has its own sums.
        self.count: Any = None  # Calls since the last update: a Keras variable, int64.
        self.state: dict[str, OptionVariable] = {}  # For files of Keras.
        self._sums: dict[int, Any] = {}

    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        name = "num_accumulated_steps"
        self.count = optimizer.add_variable((), dtype="int64", name=name)
        self.state[name] = OptionVariable(self.count)
        for index, variable in enumerate(variables):
            total = optimizer.add_variable_from_reference(
                variable, name="accumulated_gradient"
            )
            if self.is_per_replica:
                declare_partial(_tf_compat.unwrap(total))
            self._sums[id(variable)] = total
            self.state[f"sum_{index}"] = OptionVariable(total)

    def add(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        is_counted: tf.Tensor | None,
        groups: Sequence[Sequence[int]],
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Adds the gradients of one call, those of a group of places in one branch."""
        # Returns the sums, the calls that are in them, and whether an update is due.
        sums = self._sums_of(variables)

        def add(index: int) -> None:
            is_sparse = isinstance(grads[index], tf.IndexedSlices)
            total = sums[index]
            (total.scatter_add if is_sparse else total.assign_add)(grads[index])

        _for_each(groups, is_counted, add)
        counter = _tf_compat.unwrap(self.count)
        one = 1 if is_counted is None else tf.cast(is_counted, counter.dtype)
        count = tf.convert_to_tensor(counter.assign_add(one))
        is_due = count >= self.num_steps
        if is_counted is not None:
            is_due = tf.logical_and(is_due, is_counted)
        return [tf.convert_to_tensor(total) for total in sums], count, is_due

    def start_over(
        self,
        is_due: tf.Tensor,
        count: tf.Tensor,
        variables: Sequence[Any],
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Sets the sums and the counter to zero, if there was an update."""
        sums = self._sums_of(variables)
        _for_each(
            groups, is_due, lambda index: sums[index].assign(tf.zeros_like(sums[index]))
        )
        counter = _tf_compat.unwrap(self.count)
        counter.assign(tf.where(is_due, tf.zeros_like(count), count))

    def _sums_of(self, variables: Sequence[Any]) -> list[Any]:
        return [_tf_compat.unwrap(self._sums[id(variable)]) for variable in variables]


def average_sums(
    sums: list[tf.Tensor], is_due: tf.Tensor, *, options: OptimizerOptions, factor: Any
) -> list[tf.Tensor]:
    """Averages accumulated gradients over replicas, in calls that update."""
    wire_dtype = check_compression(options.compression)
    kind = AllReduce(op="mean", wire_dtype=wire_dtype)
    context = context_lib.require("apply_gradients")
    if wire_dtype != tf.float16:  # the others have the exponent range of float32
        return context.communicate(kind, sums, needed_if=is_due)
    # Scaled to the magnitude of one call's gradients, with the loss scale.
    factor = factor * (1.0 / options.accumulation_steps)
    sent = [scaled_gradient(total, factor) for total in sums]
    averaged = context.communicate(kind, sent, needed_if=is_due)
    return [scaled_gradient(total, 1.0 / factor) for total in averaged]


def when(condition: tf.Tensor | None, action: Callable[[], Any]) -> None:
    """Emits an action with effects, in a branch if there is a condition."""
    if condition is None:
        action()
        return

    def branch() -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, branch, lambda: tf.constant(0))


def _for_each(
    groups: Sequence[Sequence[int]],
    condition: tf.Tensor | None,
    action: Callable[[int], Any],
) -> None:
    """Emits an action for each place; those of a group are in one branch."""

    def act(group: Sequence[int]) -> None:
        for index in group:
            action(index)

    for group in groups:
        when(condition, functools.partial(act, group))


def placed(
    optimizer: Any,
    scope_of: Callable[[Any], context_lib.Scope | None],
    made: Callable[[Any, Any], None] | None = None,
) -> context_lib.Scope:
    """Places slots that are made inside: Keras has no hook but the method itself."""
    make = optimizer.add_variable_from_reference

    def make_placed(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        variable = _tf_compat.unwrap(reference_variable)
        scope = scope_of(variable)
        if scope is None:
            return make(reference_variable, *args, **kwargs)
        with scope:
            slot = make(reference_variable, *args, **kwargs)
        if made is not None:
            made(_tf_compat.unwrap(slot), variable)
        return slot

    return _tf_compat.altered(optimizer, add_variable_from_reference=make_placed)


# The loss is multiplied by a scale before the gradients are computed, and the gradients
# are divided by it after they were averaged over replicas, in their own type. A dynamic
# scale starts high: a gradient that is not finite halves it and skips the update; after
# ``GROWTH_STEPS`` finite updates it doubles. The decision uses the average, so it is
# identical on all replicas.

INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2000
_LARGEST_SCALE = 2.0**100
# Variables of a dynamic scale: name, first value, type.
_COUNTERS = (
    ("loss_scale", INITIAL_SCALE, "float32"),
    ("num_finite_steps", 0, "int64"),
    ("num_skipped_steps", 0, "int64"),
)


class LossScale:
    def __init__(self, setting: float | str) -> None:
        self.is_dynamic = setting == DYNAMIC  # Whether it adapts.
        # The factor: a Python float, or a Keras variable of float32.
        self.scale: Any = INITIAL_SCALE if self.is_dynamic else float(setting)
        # Steps since the scale changed, and those whose gradients were not finite:
        # Keras variables if dynamic.
        self.num_finite_steps: Any = None
        self.num_skipped_steps: Any = None
        self.state: dict[str, OptionVariable] = {}  # For files of Keras.

    def build(self) -> None:
        """Makes the variables of a dynamic scale on first use."""
        if not self.is_dynamic or self.state:
            return
        # Before the optimizer's own state: the loss is scaled before the variables that
        # get gradients are known.
        stateful = _tf_distribute.outside_stateless_scopes()
        with tf.init_scope(), context_lib.allowed(), stateful:
            for name, value, dtype in _COUNTERS:
                first = tf.constant(value, dtype)
                made = keras.Variable(first, dtype=dtype, trainable=False, name=name)
                self.state[name] = OptionVariable(made, value)
        self.scale, self.num_finite_steps, self.num_skipped_steps = (
            entry.variable for entry in self.state.values()
        )

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the scale, in the type of the loss."""
        self.build()
        loss = tensor_of(loss, "scale_loss() takes the loss, a tensor")
        return scaled_gradient(loss, self.value)

    def unscaled(self, grads: Sequence[Any]) -> list[Any]:
        factor = 1.0 / cast_number(self.value, tf.float64)
        return [scaled_gradient(grad, factor) for grad in grads]

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


# The norm of an average is not the average of norms, so a clip before the average
# limits something else than in one-device code. It is found by the names that
# TensorFlow gives to the results of ``tf.clip_by_global_norm`` and its like; what was
# averaged before it was clipped is right, and is told apart by the proof of what
# replicas have in common.

# tf.clip_by_global_norm numbers its results.
_CLIP = re.compile(r"(?:^|/)clip_by_(norm|value|global_norm)(?:_\d+)?(?:/_\d+)?$")
_INSTEAD = {
    "norm": "clipnorm=c of the Keras optimizer",
    "value": "clipvalue=c of the Keras optimizer",
    "global_norm": "wrap_optimizer(optimizer, global_clipnorm=c)",
}


def check_not_clipped(grads: list[Any]) -> None:
    """Refuses the step if each replica clipped a gradient by its own norm."""
    context = context_lib.require("apply_gradients")
    for grad in map(values_of, grads):
        is_computed = tf.is_symbolic_tensor(grad)
        match = _CLIP.search(grad.op.name) if is_computed else None
        if match is not None:
            how = match.group(1)
            context.require_same(
                grad,
                f"gradients were clipped by tf.clip_by_{how}"
                f"{at_lines([line_of(grad.op.traceback)])} before they are averaged, "
                "so each replica clips its own, unlike one device; clip the average, "
                f"by {_INSTEAD[how]}; if each replica shall clip its own, write the "
                "average before the update: apply_gradients(zip(replicator."
                "all_mean(grads), variables))",
            )


# The stages of ZeRO (Rajbhandari et al. 2020). The update is traced as for one device,
# and each node is emitted only where its result is needed; here is said where state
# is, and what owners keep. Every variable gets an owner among the replicas that keep
# copies, balanced by bytes. Where replicas share one copy, nothing changes.
#
# - ``state``: the optimizer state of a variable exists once, on its owner's device; the
#   owner's new value is copied to the others.
# - ``gradients``: the averaged gradient, and what follows from it alone, is there too.
# - ``parameters``: so is the variable itself; others gather it when they need it.
#
# Between worker processes owners are the replicas of all workers. TensorFlow's rings do
# not reduce-scatter, so averages reach every worker; each updates its part and
# broadcasts the new values, in buckets: 1.5 times the bytes. The state of other parts
# reads as empty, ``make_checkpoint_manager`` gathers it, and a plain
# ``tf.train.Checkpoint`` cannot.
#
# State that Keras makes by ``add_variable_from_reference`` is sharded: all but small
# factors of Adafactor. An update in a branch is one node, which one owner computes for
# all with ``state``; with more, each owner has a branch. The state has the same names
# as without sharding, so checkpoints restore into each other.


def kept_by_owners(grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Averaged gradients that only the owners of their variables keep."""
    owned = context_lib.require("apply_gradients").owned

    def kept(grad: Any, variable: Any) -> Any:
        keep = functools.partial(owned, variable=_tf_compat.unwrap(variable))
        return tf.nest.map_structure(keep, grad, expand_composites=True)

    return list(map(kept, grads, variables))


@contextlib.contextmanager
def building(
    ownership: Ownership,
    optimizer: Any,
    variables: Sequence[Any],
    *,
    shards_parameters: bool = False,
) -> Iterator[None]:
    """Assigns owners, and places the state that ``optimizer`` creates inside it."""
    inner = [_tf_compat.unwrap(variable) for variable in variables]
    ownership.assign(inner)
    if shards_parameters:
        ownership.store(inner)
        if not context_lib.in_replica_context():
            ownership.settle()

    def scope(variable: Any) -> context_lib.Scope | None:
        if ownership.owner(variable) is None:
            return None
        device = ownership.device(variable)

        # Keras would colocate state with its variable.
        def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            with tf.device(device):
                return next_creator(**kwargs)

        return tf.variable_creator_scope(creator)

    with placed(optimizer, scope, ownership.own_slot):
        yield


# The update itself, by TensorFlow's kernels: a Keras update of the same result is
# several ops with a temporary each, and a kernel reads and writes each array once. They
# keep state in the Keras optimizer's own slots, so checkpoints are the same.
#
# Where the update is linear in the gradient (plain SGD, momentum), the kernels take the
# gradient *sum* over R replicas and a learning rate divided by R: the same product with
# one pass less over every gradient. Not of float16, whose sum overflows where the
# average does not.

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
        if rate is None and counter is not None:
            schedule = _tf_compat.schedule_of(self._optimizer)
            rate = schedule and schedule(tf.convert_to_tensor(counter))
        if rate is None:
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
            numbers = of_type[grad.dtype]
            given = {"var": _tf_compat.handle(variable)}
            if self._kernel == _SGD and isinstance(grad, tf.IndexedSlices):
                tf.raw_ops.ResourceScatterSub(
                    resource=given["var"],
                    indices=grad.indices,
                    updates=grad.values * numbers["alpha"],
                )
                continue
            slots: dict[str, Any] = {}
            if self._kernel == _MOMENTUM:
                slots = {"accum": self._optimizer.momentums}
            elif self._kernel == _ADAM:
                moments = _tf_compat.adam_slots(self._optimizer)
                slots = dict(zip("mv", moments, strict=True))
            for name, of_variables in slots.items():
                slot = of_variables[_tf_compat.slot_index(self._optimizer, variable)]
                given[name] = _tf_compat.handle(slot)
            # The momentum of rows without a gradient decays too: the update is dense.
            given["delta" if self._kernel == _SGD else "grad"] = tf.convert_to_tensor(
                grad
            )
            getattr(tf.raw_ops, self._kernel)(**given, **numbers, use_locking=True)

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

    def count(self, counter: Any = None) -> None:
        """Counts one update; atomic, unlike the method of a Keras variable."""
        counter = self._optimizer.iterations if counter is None else counter
        tf.raw_ops.AssignAddVariableOp(
            resource=_tf_compat.handle(counter),
            value=tf.ones((), tf.as_dtype(counter.dtype)),
        )


def find_fused(
    optimizer: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
    *,
    takes_sparse: bool = False,
) -> FusedUpdate | None:
    """Returns the fused update; None if there is none, or none of the same result."""
    if getattr(optimizer, "use_ema", False) or any(
        getattr(optimizer, option, None) is not None for option in _PLAIN_OPTIONS
    ):
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
        if not (
            isinstance(grad, (tf.Tensor, tf.IndexedSlices))
            and grad.dtype == dtype
            and dtype.is_floating
            and getattr(variable, "constraint", None) is None
            and not getattr(variable, "overwrite_with_gradient", False)
        ):
            return None
        where = devices.device_type(_tf_compat.unwrap(variable).device)
        if not _tf_dispatch.has_kernel(used, where, dtype):
            return None
    is_linear = all(grad.dtype != tf.float16 for grad in grads)
    return FusedUpdate(optimizer, kernel, is_linear=is_linear)
