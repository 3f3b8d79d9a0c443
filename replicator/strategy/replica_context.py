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
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.collectives import gathering, reductions
from replicator.collectives.nests import as_written
from replicator.errors import StrategyError
from replicator.step import context as context_lib
from replicator.strategy.extended import (
    StepExtended,
    is_merging,
    merging,
    reduce_op_of,
)
from replicator.strategy.gradients import GradientSum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StepReplicaContext(tf.distribute.ReplicaContext):
    """The replica of the step that is being traced.

    Attributes:
      gradient_sum: What becomes of the sums of gradients that optimizers ask for.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, gradient_sum: GradientSum
    ) -> None:
        super().__init__(strategy, replica_id_in_sync_group=0)
        self.gradient_sum = gradient_sum

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """Index of this replica, a scalar int32 tensor."""
        return _engine().replica_id_in_sync_group

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas that collectives join."""
        return _engine().num_replicas_in_sync

    @as_written
    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Sums or averages a nest over replicas, with gradients of every order."""
        del options  # hints on packing, which the engine plans itself
        op = reduce_op_of(reduce_op)
        optimizer = _tf_distribute.updating_optimizer()
        if optimizer is not None and op == "sum":
            return self.gradient_sum.of(value, optimizer)
        return reductions.all_reduce(value, op)

    @as_written
    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenates a nest over replicas along an axis.

        Sizes along the axis may differ between replicas.
        """
        del options
        return gathering.all_concat(value, axis)

    @as_written
    def merge_call(
        self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of the strategy and of this replica's own values."""
        scaler = _tf_distribute.loss_scaler_of(merge_fn)
        if scaler is not None:
            # All replicas have to skip the same updates: by sums, not own gradients.
            args = (self.gradient_sum.of_scaler(args[0], scaler), *args[1:])
        with (
            contextlib.nullcontext()
            if scaler is None
            else context_lib.gradients_averaged(),
            merging(self, self.gradient_sum.of_merge(merge_fn)),
            _tf_distribute.cross_replica_mode(self._strategy),
        ):
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


class StepStrategy(tf.distribute.Strategy):
    """``tf.distribute.get_strategy()`` in a step of ``repl.run``.

    Its number of replicas is 1: what a loss has to be divided by.
    """

    def __init__(self, extended: StepExtended | None = None) -> None:
        super().__init__(extended or StepExtended(self))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Passes for a strategy of one device, which a replica is.

        Sonnet's optimizers and tf_keras' loss scale refuse what they do not know.
        """
        return tf.distribute.OneDeviceStrategy

    def scope(self) -> Any:
        """Rejected: a step is in the scope of its replicator.

        Inside ``merge_call`` optimizers of ``tf.compat.v1`` enter it for new slots.
        """
        if is_merging():
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
        del fn, args, kwargs, options
        raise StrategyError(
            "strategy.run() was called inside a step, which is the code of one "
            "replica; call the function directly"
        )

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces over replicas, inside ``merge_call``."""
        if axis is not None:
            raise StrategyError(
                f"reduce(axis={axis!r}) inside merge_call(): reduce over the axis in "
                "the step, then over replicas with axis=None"
            )
        return reductions.all_reduce(value, reduce_op_of(reduce_op))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The value of this replica alone."""
        return (value,)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates over replicas, inside ``merge_call``."""
        return gathering.all_concat(value, axis)


@contextlib.contextmanager
def entered() -> Iterator[None]:
    """Makes the replica of a step of ``repl.run`` the one of ``tf.distribute``."""
    replica = StepReplicaContext(_of_steps(), GradientSum())
    with _tf_distribute.replica_mode(replica):
        yield


@contextlib.contextmanager
def entered_by(
    strategy: tf.distribute.Strategy, gradient_sum: GradientSum
) -> Iterator[None]:
    """Makes the replica of a step of ``strategy.run`` the one of ``tf.distribute``."""
    replica = StepReplicaContext(strategy, gradient_sum)
    with (
        _tf_distribute.replica_mode(replica),
        context_lib.gradients_divided(gradient_sum.undivided),
        context_lib.losses_weighed(gradient_sum.weight),
    ):
        yield


def _engine() -> context_lib.ReplicaContext:
    return context_lib.get_replica_context()


_OF_STEPS: list[StepStrategy] = []


def _of_steps() -> StepStrategy:
    """The strategy of all steps of ``repl.run``."""
    if not _OF_STEPS:
        _OF_STEPS.append(StepStrategy())
    return _OF_STEPS[0]
