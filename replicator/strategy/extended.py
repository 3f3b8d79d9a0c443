"""What libraries ask of a strategy's ``extended`` within a step, and about variables.

Keras, tf_keras, Sonnet and ``tf.compat.v1`` optimizers call it. A variable is an
ordinary one here, which the engine copies by itself, so most answers are simple.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.core import context
from replicator.core.validation import format_value
from replicator.errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# Attribute of variables that were made in a scope.
_IS_IN_SCOPE = "_replicator_is_in_scope"


class _Merges(threading.local):
    def __init__(self) -> None:
        self.running: list[tuple[Any, Callable[[Any], Any]]] = []


_MERGES = _Merges()


@contextlib.contextmanager
def merging(replica_context: Any, total: Callable[[Any], Any]) -> Iterator[None]:
    _MERGES.running.append((replica_context, total))
    try:
        yield
    finally:
        _MERGES.running.pop()


def is_merging() -> bool:
    return bool(_MERGES.running)


def reduce_op_of(reduce_op: Any) -> str:
    name = getattr(reduce_op, "value", reduce_op)
    if isinstance(name, str) and name.lower() in ("sum", "mean"):
        return name.lower()
    raise StrategyError(
        f"reduce_op {format_value(reduce_op)} is not one of tf.distribute.ReduceOp.SUM "
        "and MEAN; in a step, write replicator.all_min(value) or all_max(value)"
    )


class StepExtended(_tf_distribute.Extended):
    """The extended of a strategy whose replicas are the engine's."""

    # A function of the user is the same for all replicas.
    _retrace_functions_for_each_device = False

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return ("/device:CPU:0",)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return self.worker_devices[:1]

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    @property
    def experimental_between_graph(self) -> bool:
        return False

    @property
    def experimental_should_init(self) -> bool:
        return True

    def _in_multi_worker_mode(self) -> bool:
        return False

    def _use_merge_call(self) -> bool:
        return True

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        neighbour = kwargs.pop("colocate_with", None)
        place = tf.device(neighbour.device) if neighbour is not None else _ANYWHERE
        with place:
            variable = next_creator(**kwargs)
        setattr(variable, _IS_IN_SCOPE, True)
        return variable

    def variable_created_in_scope(self, v: Any) -> bool:
        is_own: bool = super().variable_created_in_scope(v)
        return is_own or context.in_replica_context()

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """A scope that makes variables on the device of another one.

        Optimizers of Keras make their slots in it, in a program without ``fit`` by
        their first step: outside of that step, then. Those of tf_keras update in it.
        """
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
        del colocate_with
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
        del destinations, options
        replica_context, total = _merge("reduce_to")
        del replica_context
        op = reduce_op_of(reduce_op)
        return total(value) if op == "sum" else reductions.all_reduce(value, op)

    def batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any = None
    ) -> list[Any]:
        values = [value for value, _ in value_destination_pairs]
        return list(self.reduce_to(reduce_op, values, None, options))

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        del destinations
        return tensor

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        del destinations, options
        return reductions.all_concat(value, axis)

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        replica_context, _ = _merge("call_for_each_replica")
        with _tf_distribute.replica_mode(replica_context):
            return fn(*args, **(kwargs or {}))


def _merge(caller: str) -> tuple[Any, Callable[[Any], Any]]:
    context.require(f"strategy.extended.{caller}")
    if not is_merging():
        raise StrategyError(
            f"strategy.extended.{caller}() was called in a step but outside "
            "merge_call(); write tf.distribute.get_replica_context().all_reduce("
            "tf.distribute.ReduceOp.SUM, value)"
        )
    return _MERGES.running[-1]


_ANYWHERE = contextlib.nullcontext()


def _updated(result: Any, *, group: bool) -> Any:
    if not group:
        return tf.nest.map_structure(lambda of_replica: (of_replica,), result)
    return result if result is None else tf.group(result)
