"""Gradient accumulation: one update per k calls of ``apply_gradients``.

The result is that of one batch k times as large. If replicas have separate memories
(GPUs, other machines), each sums its own gradients, and only the call that updates
averages the sums over replicas: 1/k of the communication. The other calls communicate
nothing, except for one boolean with a dynamic loss scale, which says on all replicas
whether the call counts. If all replicas share one memory, nothing is sent anyway;
gradients are then averaged in every call, and there is one sum instead of one per
replica.

The sums are state of the Keras optimizer. Of per-replica sums only the mean counts:
``CheckpointManager.save`` replaces all of them by the mean, so its checkpoints contain
an unfinished accumulation, for any number of replicas. Outside a step, and in a plain
``tf.train.Checkpoint``, they read as those of one replica.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives import compression as compression_lib
from replicator.collectives import reductions
from replicator.collectives.kinds.all_reduce import AllReduce
from replicator.optimizer.gradients import times
from replicator.optimizer.keras_saving import OptionVariable
from replicator.variables.kinds import declare_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.optimizer.options import OptimizerOptions

    # (sums, whether an update is due) -> (the same over replicas, whether finite)
    Combine = Callable[
        [list[tf.Tensor], tf.Tensor], tuple[list[tf.Tensor], tf.Tensor | None]
    ]


class Accumulation:
    """Sums of gradients since the last update, as state of a Keras optimizer.

    Attributes:
      num_steps: Calls per update.
      is_per_replica: Whether each replica has its own sums.
      count: Calls since the last update: a Keras variable, int64.
    """

    def __init__(self, num_steps: int, *, is_per_replica: bool = False) -> None:
        self.num_steps = num_steps
        self.is_per_replica = is_per_replica
        self.count: Any = None
        self._sums: dict[int, Any] = {}

    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Makes one accumulator per variable, and the counter."""
        self.count = optimizer.add_variable(
            (), dtype="int64", name="num_accumulated_steps"
        )
        for variable in variables:
            accumulator = optimizer.add_variable_from_reference(
                variable, name="accumulated_gradient"
            )
            if self.is_per_replica:
                declare_partial(_tf_compat.unwrap(accumulator))
            self._sums[id(variable)] = accumulator

    def entries(self) -> dict[str, OptionVariable]:
        """The counter and the sums, for files of Keras."""
        sums = {f"sum_{i}": total for i, total in enumerate(self._sums.values())}
        both = {"num_accumulated_steps": self.count} | sums
        return {
            name: OptionVariable(variable=variable) for name, variable in both.items()
        }

    def add(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        is_counted: tf.Tensor | None,
        *,
        combine: Combine,
        update: Callable[[tf.Tensor, Callable[[], list[tf.Tensor]]], None],
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Adds the gradients of one call; one that is due updates and starts over."""
        sums = [_tf_compat.unwrap(self._sums[id(variable)]) for variable in variables]
        for group in groups:
            added = [(sums[place], grads[place]) for place in group]
            when(is_counted, functools.partial(_add, added))
        counter = _tf_compat.unwrap(self.count)
        one = tf.ones((), counter.dtype)
        if is_counted is not None:
            one = tf.cast(is_counted, counter.dtype)
        count = tf.convert_to_tensor(counter.assign_add(one))
        is_due = count >= self.num_steps
        if is_counted is not None:
            is_due = tf.logical_and(is_due, is_counted)
        totals, is_usable = combine([tf.convert_to_tensor(s) for s in sums], is_due)
        if is_usable is not None:
            is_due = tf.logical_and(is_due, is_usable)

        def averages() -> list[tf.Tensor]:
            share = 1.0 / tf.cast(count, tf.float64)
            return [total * tf.cast(share, total.dtype) for total in totals]

        # Two branches, because sums may differ between replicas, but the update not.
        update(is_due, averages)
        for group in groups:
            when(is_due, functools.partial(_start_over, [sums[p] for p in group]))
        counter.assign(tf.where(is_due, tf.zeros_like(count), count))


def _add(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Adds to each accumulator its gradient."""
    for accumulator, grad in pairs:
        if isinstance(grad, tf.IndexedSlices):
            accumulator.scatter_add(grad)
        else:
            accumulator.assign_add(grad)


def _start_over(accumulators: Sequence[Any]) -> None:
    for accumulator in accumulators:
        accumulator.assign(tf.zeros_like(accumulator))


def average_sums(
    sums: list[tf.Tensor], is_due: tf.Tensor, *, options: OptimizerOptions, factor: Any
) -> list[tf.Tensor]:
    """Averages accumulated gradients over replicas, in calls that update."""
    wire_dtype = compression_lib.check(options.compression)
    kind = AllReduce(op="mean", wire_dtype=wire_dtype)
    if wire_dtype != tf.float16:  # the others have the exponent range of float32
        return reductions.all_reduce_if(is_due, sums, kind)
    # Scaled to the magnitude of one call's gradients, with the loss scale.
    factor = factor * (1.0 / options.accumulation_steps)
    sent = [times(total, factor) for total in sums]
    averaged = reductions.all_reduce_if(is_due, sent, kind)
    return [times(total, 1.0 / factor) for total in averaged]


def when(condition: tf.Tensor | None, action: Callable[[], Any]) -> None:
    """Emits an action with effects, in a branch if there is a condition."""
    if condition is None:
        action()
        return

    def branch() -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, branch, lambda: tf.constant(0))
