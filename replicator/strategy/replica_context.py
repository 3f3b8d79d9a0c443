"""What ``tf.distribute.get_replica_context()`` is in a step: the engine's replica.

A step is traced once, as one replica that stands for all, so what TensorFlow does in
"cross-replica context" within a step (``merge_call``) is done here by that replica with
collectives.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import keras_parts as _tf_keras_parts
from replicator.collectives import reductions
from replicator.collectives.differentiable import as_written, values_of, with_values
from replicator.core import context
from replicator.core.step import at_lines, line_of
from replicator.core.validation import format_value
from replicator.errors import StrategyError
from replicator.optimizer.options import CLIPS
from replicator.optimizer.stages import scaled_gradient
from replicator.optimizer.wrapper import ReplicatedOptimizer


def reduce_op_of(reduce_op: Any) -> str:
    name = getattr(reduce_op, "value", reduce_op)
    if isinstance(name, str) and name.lower() in ("sum", "mean"):
        return name.lower()
    raise StrategyError(
        f"reduce_op {format_value(reduce_op)} is not one of tf.distribute.ReduceOp.SUM "
        "and MEAN; in a step, write replicator.all_min(value) or all_max(value)"
    )


# The sums of gradients that optimizers ask of ``tf.distribute``.
#
# In a step of ``repl.run`` they are left as they are: ``wrap_optimizer`` has averaged
# them. In a step of ``strategy.run`` they are summed, since losses were divided by the
# number of replicas, as ``tf.distribute`` has it (Keras' own losses do that). In the
# step of a Keras model nothing divides losses (``num_replicas_in_sync`` of the strategy
# is 1), and gradients of variables are averaged as a tape returns them: what the step
# or its optimizer makes of them, such as a clip, is made of the averages. A replica
# counts by its examples there, so that the last, partial batch of an epoch is one like
# all others.
class GradientSum:
    """What becomes of the sums of gradients in one step."""

    def __init__(
        self,
        num_replicas: int = 1,
        *,
        is_of_model: bool = False,
        num_examples: tf.Tensor | None = None,
    ) -> None:
        self._num_replicas = num_replicas
        self._is_of_model = is_of_model
        # By what losses are divided.
        self.divisor = 1 if is_of_model else num_replicas
        self._num_examples = num_examples
        self._weight: tf.Tensor | None = None
        self._means: set[Any] = set()  # operations of gradients that are averaged
        # Whether an optimizer, or a tape, has asked for gradients of all.
        self.has_updated = False

    def of(self, grads: Any, optimizer: Any = None) -> Any:
        """Joins gradients over replicas, for an optimizer."""
        if not context.are_gradients_divided() or self._num_replicas == 1:
            return grads
        _check(optimizer, may_clip=self._is_of_model)
        self.has_updated = True
        if self._is_of_model:
            leaves = self._model_gradients(tf.nest.flatten(grads))
            return tf.nest.pack_sequence_as(grads, leaves)
        return reductions.all_sum(grads)

    def tape_gradients(
        self, gradient: Any, tape: Any, target: Any, sources: Any, *args: Any, **kw: Any
    ) -> Any:
        """Gradients as ``tape.gradient`` returns them, of variables averaged."""
        grads = gradient(tape, target, sources, *args, **kw)
        is_inner = _tf_compat.is_control_flow_graph(_tf_compat.current_graph())
        if is_inner or _tf_keras_parts.is_recorded():
            return grads  # of these, the step takes gradients again, or updates apart
        leaves = tf.nest.flatten(grads)
        of_variables = [
            isinstance(_tf_compat.unwrap(source), tf.Variable) and grad is not None
            for source, grad in zip(tf.nest.flatten(sources), leaves, strict=True)
        ]
        means = map_some(self._averaged, leaves, of_variables)
        return tf.nest.pack_sequence_as(grads, means)

    def _averaged(self, grads: Sequence[Any]) -> list[Any]:
        self.has_updated = True
        means = list(reductions.all_mean(self._weighted(grads)))
        self._means |= {values_of(mean).op for mean in means}
        return means

    def _model_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Gradients of the whole batch: those that no tape returned are averaged."""
        before = self._means
        are_own = [
            not (before and _tf_compat.depends_on(values_of(grad), before))
            for grad in grads
        ]
        for grad, is_own in zip(grads, are_own, strict=True):
            op = values_of(grad).op
            if not (is_own or op in before):
                where = at_lines([line_of(op.traceback)])
                context.require("apply_gradients").require_same(
                    values_of(grad), f"a step of fit(){where} {_NOT_OF_MEANS}"
                )
        return map_some(self._averaged, grads, are_own)

    def mean(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The means over all examples of what are some over those of each replica."""
        return list(reductions.all_mean(self._weighted(values)))

    def scaled_gradients(self, grads: Any, scaler: Any) -> Any:
        """Sums gradients before ``LossScaleOptimizer`` asks whether they are finite."""
        inner = scaler.inner_optimizer
        if isinstance(inner, ReplicatedOptimizer):
            kind = type(inner.wrapped).__name__
            raise StrategyError(
                f"compile() put a wrapped {kind} into Keras' LossScaleOptimizer, as "
                "the model computes in float16; write compile(repl.wrap_optimizer("
                f'{kind}(...), loss_scale="dynamic"), ..., auto_scale_loss=False)'
            )
        total = functools.partial(self.of, optimizer=inner)
        return map_some(total, grads, [grad is not None for grad in grads])

    def unscale(self, grads: list[Any]) -> list[Any]:
        """Multiplies gradients, so that their mean is the sum; see ``of``."""
        self.has_updated = True
        grads, factor = self._weighted(grads), self.divisor
        return [scaled_gradient(x, factor) for x in grads] if factor != 1 else grads

    def weight(self) -> tf.Tensor | None:
        """By what gradients of this replica are multiplied; None if by 1 on all."""
        # Gradients that pass collectives of the model meet those of other replicas,
        # which have weights of their own.
        if self._num_examples is None or self._num_replicas == 1:
            return None
        if self._weight is None:
            own = tf.cast(self._num_examples, tf.float64)
            total = reductions.all_sum(own)
            # Exactly 1 where all have as many.
            whole = own * float(self._num_replicas)
            self._weight = tf.math.divide_no_nan(whole, total)
        return self._weight

    def share(self, dtype: tf.DType) -> tf.Tensor:
        """The share of this replica in all examples."""
        weight = self.weight()
        weight = tf.ones([]) if weight is None else weight
        return tf.cast(weight / float(self._num_replicas), dtype)

    def _weighted(self, grads: Any) -> Any:
        """Gradients of replicas that count by their examples."""
        # Of a replica that has none, a mean is not a number, and counts nothing.
        weight = self.weight()

        def counted(grad: Any) -> Any:
            values = values_of(grad)
            by = tf.cast(weight, values.dtype)
            return with_values(grad, tf.math.multiply_no_nan(values, by))

        return grads if weight is None else list(map(counted, grads))


def map_some(
    function: Callable[[list[Any]], Any],
    leaves: Sequence[Any],
    are_chosen: Sequence[bool],
) -> list[Any]:
    """Leaves, of which a function of a list makes the chosen ones anew."""
    both = list(zip(leaves, are_chosen, strict=True))
    chosen = [leaf for leaf, is_chosen in both if is_chosen]
    made = iter(function(chosen) if chosen else ())
    return [next(made) if is_chosen else leaf for leaf, is_chosen in both]


def _check(optimizer: Any, *, may_clip: bool) -> None:
    """Rejects what an optimizer does before gradients are joined."""
    kind = type(optimizer).__name__
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and _tf_compat.is_control_flow_graph(_tf_compat.current_graph()):
        raise StrategyError(
            f"{kind}(gradient_accumulation_steps={steps!r}) joins the gradients of "
            "replicas in a branch of Keras, where replicas cannot communicate; write "
            f"repl.wrap_optimizer({kind}(...), accumulation_steps={steps!r}), which "
            "updates alike, or gradient_accumulation_steps=None"
        )
    clips = [name for name in CLIPS if getattr(optimizer, name, None)]
    if clips and not may_clip:
        raise StrategyError(
            f"{kind}({clips[0]}={getattr(optimizer, clips[0])!r}) clips the "
            "gradient of each replica before they are joined, so an update is not "
            f"that of one device; write repl.wrap_optimizer({kind}(...)), which "
            "averages first"
        )


_NOT_OF_MEANS = (
    "computes with gradients what is more than a function of them, of examples, random "
    "numbers or a state of this replica, so that the update is not that of one device; "
    'write gradients = tf.distribute.get_replica_context().all_reduce("mean", '
    "gradients) before it, and make the rest the same on all replicas"
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
        # Keras' optimizers themselves sum gradients, by the replica context.
        callers = filter(_tf_compat.is_optimizer, _tf_distribute.keras_callers())
        optimizer = next(callers, None)
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
        sums = self.gradient_sum
        averaged: context.Scope = contextlib.nullcontext()
        scaler = _tf_distribute.loss_scaler_of(merge_fn)
        if scaler is not None:
            # All replicas have to skip the same updates: by sums, not own gradients.
            args = (sums.scaled_gradients(args[0], scaler), *args[1:])
            averaged = context.gradients_divided(None)
        owner = getattr(merge_fn, "__self__", None)
        library = str(getattr(merge_fn, "__module__", "")).partition(".")[0]
        is_optimizer = isinstance(owner, tf.compat.v1.train.Optimizer)
        is_update = is_optimizer or library in ("keras", "tf_keras")
        # By whom, and how values are summed in it.
        merge = self, sums.of if is_update else reductions.all_sum
        in_merge = context.holding("merge", merge)
        with averaged, in_merge, _tf_distribute.cross_replica_mode(self._strategy):
            return merge_fn(self._strategy, *args, **(kwargs or {}))


# Attribute of variables that were made in a scope.
_IS_IN_SCOPE = "_replicator_is_in_scope"


# Keras, tf_keras, Sonnet and ``tf.compat.v1`` optimizers call it. A variable is an
# ordinary one here, which the engine copies by itself, so most answers are simple.
class StepExtended(tf.compat.v1.distribute.StrategyExtended):
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
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    _replica_ctx_update = update  # the replica updates for all, without a merge

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        result = fn(*args, **(kwargs or {}))
        if not group:
            return tf.nest.map_structure(lambda of_replica: (of_replica,), result)
        return result if result is None else tf.group(result)

    def non_slot_devices(self, var_list: Sequence[Any]) -> Any:
        return self.parameter_devices[0] if not var_list else var_list[0].device

    def read_var(self, v: Any) -> tf.Tensor:
        return tf.convert_to_tensor(v)

    def value_container(self, value: Any) -> Any:
        return value

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        return (val,)

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
        self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None
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

    def gather(self, value: Any, axis: int) -> Any:
        return reductions.all_concat(value, axis)


_step_strategy = functools.cache(StepStrategy)


def entered() -> Any:
    """Makes the replica of a step of ``repl.run`` the one of ``tf.distribute``."""
    return _tf_distribute.replica_mode(StepReplicaContext(_step_strategy()))
