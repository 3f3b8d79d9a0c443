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

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.variables.kinds import declare_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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

    def add(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        is_counted: tf.Tensor | None,
    ) -> Accumulated:
        """Adds the gradients of one call.

        Args:
          grads: Of this replica if it has its own sums, else averaged over replicas.
          variables: What they belong to.
          is_counted: Whether this call counts, a scalar bool that is identical on
            every replica; None if it does. One that does not (its gradients are not
            finite) adds nothing.

        Returns:
          The state after it, of which the caller has to ``finish`` the call.
        """
        sums = [_tf_compat.unwrap(self._sums[id(variable)]) for variable in variables]

        def add() -> None:
            for accumulator, grad in zip(sums, grads, strict=True):
                if isinstance(grad, tf.IndexedSlices):
                    accumulator.scatter_add(grad)
                else:
                    accumulator.assign_add(grad)

        when(is_counted, add)
        counter = _tf_compat.unwrap(self.count)
        one = tf.ones((), counter.dtype)
        if is_counted is not None:
            one = tf.cast(is_counted, counter.dtype)
        count = tf.convert_to_tensor(counter.assign_add(one))
        is_due = count >= self.num_steps
        if is_counted is not None:
            is_due = tf.logical_and(is_due, is_counted)
        return Accumulated(
            sums=sums,
            totals=[tf.convert_to_tensor(s) for s in sums],
            counter=counter,
            count=count,
            is_due=is_due,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accumulated:
    """The sums after a call has added its gradients.

    Attributes:
      sums: One accumulator per variable.
      totals: Their values.
      counter: The variable that counts calls since the last update.
      count: Its value, this call included.
      is_due: Whether this call updates; a scalar bool.
    """

    sums: Sequence[Any]
    totals: list[tf.Tensor]
    counter: Any
    count: tf.Tensor
    is_due: tf.Tensor

    def finish(
        self,
        totals: Sequence[tf.Tensor],
        is_usable: tf.Tensor | None,
        update: Callable[[list[tf.Tensor]], None],
    ) -> None:
        """Updates and starts over, in a call that is due.

        Args:
          totals: The sums, averaged over replicas if this call updates.
          is_usable: Whether they are finite, a scalar bool; None if nobody asks. If
            not, the next call that counts tries again, with its gradients added.
          update: Takes the average of the accumulated gradients.
        """
        is_due = self.is_due
        if is_usable is not None:
            is_due = tf.logical_and(is_due, is_usable)

        def finish() -> None:
            share = 1.0 / tf.cast(self.count, tf.float64)
            update([total * tf.cast(share, total.dtype) for total in totals])

        def start_over() -> None:
            for accumulator in self.sums:
                accumulator.assign(tf.zeros_like(accumulator))

        # Two branches, because sums may differ between replicas, but the update not.
        when(is_due, finish)
        when(is_due, start_over)
        self.counter.assign(tf.where(is_due, tf.zeros_like(self.count), self.count))


def when(condition: tf.Tensor | None, action: Callable[[], Any]) -> None:
    """Emits an action with effects, in a branch if there is a condition."""
    if condition is None:
        action()
        return

    def branch() -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, branch, lambda: tf.constant(0))
