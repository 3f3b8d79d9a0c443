"""What ``tf.distribute.get_replica_context()`` is in a step: the engine's replica.

A step is traced once, as one replica that stands for all, so what TensorFlow does in
"cross-replica context" within a step (``merge_call``) is done here by that replica with
collectives.

Two conventions exist of how gradients are averaged. In steps of ``repl.run`` and of
``fit``, the loss is the mean of the replica's own batch and the optimizer averages. In
other steps of ``strategy.run``, as ``tf.distribute`` has it, losses are divided by the
number of replicas (Keras' own do that) and optimizers sum. So ``num_replicas_in_sync``
of the *strategy* is 1 in the former, where losses are not to be divided.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.collectives.differentiable import as_written
from replicator.core import context
from replicator.core.validation import format_value
from replicator.errors import StrategyError
from replicator.strategy.gradients import GradientSum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def reduce_op_of(reduce_op: Any) -> str:
    name = getattr(reduce_op, "value", reduce_op)
    if isinstance(name, str) and name.lower() in ("sum", "mean"):
        return name.lower()
    raise StrategyError(
        f"reduce_op {format_value(reduce_op)} is not one of tf.distribute.ReduceOp.SUM "
        "and MEAN; in a step, write replicator.all_min(value) or all_max(value)"
    )


class StepReplicaContext(tf.distribute.ReplicaContext):
    def __init__(
        self, strategy: tf.distribute.Strategy, gradient_sum: GradientSum | None = None
    ) -> None:
        super().__init__(strategy, replica_id_in_sync_group=0)
        # What becomes of the sums of gradients that optimizers ask for.
        self.gradient_sum = gradient_sum or GradientSum()

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        return context.get_replica_context().replica_id_in_sync_group

    @property
    def num_replicas_in_sync(self) -> int:
        return context.get_replica_context().num_replicas_in_sync

    @as_written
    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Sums or averages a nest over replicas, with gradients of every order."""
        op = reduce_op_of(reduce_op)
        optimizer = _tf_distribute.updating_optimizer()
        if optimizer is not None and op == "sum":
            return self.gradient_sum.of(value, optimizer)
        return reductions.all_reduce(value, op)

    @as_written
    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        # Sizes along the axis may differ between replicas.
        return reductions.all_concat(value, axis)

    @as_written
    def merge_call(
        self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of the strategy and of this replica's own values."""
        scaler = _tf_distribute.loss_scaler_of(merge_fn)
        if scaler is not None:
            # All replicas have to skip the same updates: by sums, not own gradients.
            args = (self.gradient_sum.of_scaler(args[0], scaler), *args[1:])
        averaged = (
            contextlib.nullcontext()
            if scaler is None
            else context.gradients_divided(None)
        )
        # By whom, and how values are summed in it.
        merge = context.holding("merge", (self, self.gradient_sum.of_merge(merge_fn)))
        with averaged, merge, _tf_distribute.cross_replica_mode(self._strategy):
            return merge_fn(self._strategy, *args, **(kwargs or {}))

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        return self._strategy.extended.update(var, fn, args, kwargs, group)


# Attribute of variables that were made in a scope.
_IS_IN_SCOPE = "_replicator_is_in_scope"


# Keras, tf_keras, Sonnet and ``tf.compat.v1`` optimizers call it. A variable is an
# ordinary one here, which the engine copies by itself, so most answers are simple.
class StepExtended(_tf_distribute.Extended):
    """What libraries ask a strategy's ``extended`` in a step, and about variables."""

    # A function of the user is the same for all replicas.
    _retrace_functions_for_each_device = False
    should_checkpoint: Any = True
    should_save_summary: Any = True
    experimental_between_graph: Any = False
    experimental_should_init = True
    worker_devices: Any = ("/device:CPU:0",)
    _num_replicas_in_sync: Any = 1

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return tuple(self.worker_devices[:1])

    def _in_multi_worker_mode(self) -> bool:
        return bool(self.experimental_between_graph)

    def _use_merge_call(self) -> bool:
        return True

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        neighbour = kwargs.pop("colocate_with", None)
        scope = contextlib.nullcontext()
        with scope if neighbour is None else tf.device(neighbour.device):
            variable = next_creator(**kwargs)
        setattr(variable, _IS_IN_SCOPE, True)
        return variable

    def variable_created_in_scope(self, v: Any) -> bool:
        is_own: bool = super().variable_created_in_scope(v)
        return is_own or context.in_replica_context()

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """A scope that makes variables on the device of another one."""
        # Optimizers of Keras make their slots in it, in a program without ``fit`` by
        # their first step: outside of that step, then. Those of tf_keras update in it.
        if not (
            tf.distribute.has_strategy()
            or getattr(colocate_with_variable, _IS_IN_SCOPE, False)
        ):
            raise StrategyError(
                "an optimizer was made in scope(), but "
                f"{format_value(getattr(colocate_with_variable, 'name', None))}, which "
                "it trains, outside, so that fit() would train on one device; make the "
                "model inside `with repl.scope():` too"
            )
        device = colocate_with_variable.device
        if context.in_replica_context():
            return context.made_outside(device=device)
        return tf.device(device)

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        return _updated(fn(var, *args, **(kwargs or {})), group=group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        return _updated(fn(*args, **(kwargs or {})), group=group)

    def non_slot_devices(self, var_list: Sequence[Any]) -> Any:
        return self.parameter_devices[0] if not var_list else var_list[0].device

    def read_var(self, v: Any) -> tf.Tensor:
        return tf.convert_to_tensor(v)

    def value_container(self, value: Any) -> Any:
        return value

    def reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        _, total = _merge("reduce_to")
        op = reduce_op_of(reduce_op)
        return total(value) if op == "sum" else reductions.all_reduce(value, op)

    def batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any = None
    ) -> list[Any]:
        values = [value for value, _ in value_destination_pairs]
        return list(self.reduce_to(reduce_op, values, None, options))

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        return reductions.all_concat(value, axis)

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        replica_context, _ = _merge("call_for_each_replica")
        with _tf_distribute.replica_mode(replica_context):
            return fn(*args, **(kwargs or {}))


def _merge(caller: str) -> tuple[Any, Callable[[Any], Any]]:
    context.require(f"strategy.extended.{caller}")
    merge: tuple[Any, Callable[[Any], Any]] | None = context.held("merge")
    if merge is None:
        raise StrategyError(
            f"strategy.extended.{caller}() was called in a step but outside "
            "merge_call(); write tf.distribute.get_replica_context().all_reduce("
            "tf.distribute.ReduceOp.SUM, value)"
        )
    return merge


def _updated(result: Any, *, group: bool) -> Any:
    if not group:
        return tf.nest.map_structure(lambda of_replica: (of_replica,), result)
    return result if result is None else tf.group(result)


# Its number of replicas is 1: what a loss has to be divided by.
class StepStrategy(tf.distribute.Strategy):
    """``tf.distribute.get_strategy()`` in a step of ``repl.run``."""

    def __init__(self, extended: StepExtended | None = None) -> None:
        super().__init__(extended or StepExtended(self))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Passes for a strategy of one device, which a replica is."""
        # Sonnet's optimizers and tf_keras' loss scale refuse what they do not know.
        return tf.distribute.OneDeviceStrategy

    def scope(self) -> Any:
        """Rejected: a step is in the scope of its replicator."""
        # Inside ``merge_call`` optimizers of ``tf.compat.v1`` enter it for new slots.
        if context.held("merge") is not None:
            return contextlib.nullcontext(self)
        raise StrategyError(
            "scope() of the strategy of a step: variables are made before the step; "
            "write `with repl.as_strategy().scope():` around their creation"
        )

    def run(
        self,
        fn: Any,
        args: Any = (),
        kwargs: Any = None,
        options: Any = None,
    ) -> Any:
        """Rejected: a step is already the code of one replica."""
        raise StrategyError(
            "strategy.run() was called inside a step, which is the code of one "
            "replica; call the function directly"
        )

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        if axis is not None:
            raise StrategyError(
                f"reduce(axis={axis!r}) inside merge_call(): reduce over the axis in "
                "the step, then over replicas with axis=None"
            )
        return reductions.all_reduce(value, reduce_op_of(reduce_op))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def gather(self, value: Any, axis: int) -> Any:
        return reductions.all_concat(value, axis)


def entered() -> Any:
    """Makes the replica of a step of ``repl.run`` the one of ``tf.distribute``."""
    return _tf_distribute.replica_mode(StepReplicaContext(_of_steps()))


@contextlib.contextmanager
def entered_by(
    strategy: tf.distribute.Strategy, gradient_sum: GradientSum
) -> Iterator[None]:
    replica = StepReplicaContext(strategy, gradient_sum)
    with (
        _tf_distribute.replica_mode(replica),
        context.gradients_divided(gradient_sum.unscale),
        context.losses_weighed(gradient_sum.weight),
    ):
        yield


@functools.cache
def _of_steps() -> StepStrategy:
    return StepStrategy()
