"""Gradient accumulation: k calls of ``apply_gradients`` make one update.

Each call's gradients are averaged over replicas and added to accumulators, which are
equal on all replicas; every k-th call updates with their average, so the result is that
of one batch k times as large. Communication happens in every call: a collective may not
stand in a branch, and what is added is then checked, scaled and checkpointed like any
mirrored state, also in the middle of an accumulation. What accumulation saves is memory
for activations, and updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import _tf_compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Accumulation:
    """Sums of gradients since the last update, as state of a Keras optimizer.

    Attributes:
      num_steps: Calls per update.
      count: Calls since the last update: a Keras variable, int64.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.count: Any = None
        self._sums: dict[int, Any] = {}

    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Makes one accumulator per variable, and the counter."""
        self.count = optimizer.add_variable(
            (), dtype="int64", name="num_accumulated_steps"
        )
        for variable in variables:
            self._sums[id(variable)] = optimizer.add_variable_from_reference(
                variable, name="accumulated_gradient"
            )

    def apply(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        is_counted: tf.Tensor | None,
        update: Callable[[list[tf.Tensor]], None],
    ) -> None:
        """Adds gradients; every ``num_steps``-th call updates and starts over.

        Args:
          grads: Averaged over replicas.
          variables: What they belong to.
          is_counted: Whether this call counts, a scalar bool; None if it does. One that
            does not (its gradients are not finite) leaves everything as it is.
          update: Takes the average of the accumulated gradients.
        """
        sums = [self._sums[id(variable)] for variable in variables]

        def add() -> tf.Tensor:
            for accumulator, grad in zip(sums, grads, strict=True):
                inner = _tf_compat.unwrap(accumulator)
                if isinstance(grad, tf.IndexedSlices):
                    inner.scatter_add(grad)
                else:
                    inner.assign_add(grad)
            count = _tf_compat.unwrap(self.count).assign_add(1)

            def finish() -> tf.Tensor:
                share = 1.0 / self.num_steps
                update([s.value * tf.cast(share, s.dtype) for s in sums])
                for accumulator in sums:
                    accumulator.assign(tf.zeros_like(accumulator.value))
                self.count.assign(0)
                return tf.constant(0)

            return tf.cond(count >= self.num_steps, finish, lambda: tf.constant(0))

        when(is_counted, add)


def when(condition: tf.Tensor | None, action: Callable[[], Any]) -> None:
    """Emits an action with effects, in a branch if there is a condition."""
    if condition is None:
        action()
        return

    def branch() -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, branch, lambda: tf.constant(0))
