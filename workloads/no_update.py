"""A measuring control: the step of a program, without the update of its variables.

Gradients are computed and summed over replicas as in the case; one number of each sum
is used, so that TensorFlow computes all of it. What follows is left out: clipping, the
optimizer's arithmetic and its writes, which take time without any communication.
Learning means nothing: the weights stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

import replicator
from workloads.delegating import Delegating

if TYPE_CHECKING:
    from collections.abc import Iterable


class NotUpdatingReplicator(Delegating):
    """A replicator whose optimizers sum gradients and update nothing.

    Everything else is that of the replicator it was made of.

    Attributes:
      original: That replicator.
    """

    def wrap_optimizer(self, *args: Any, **options: Any) -> NotUpdatingOptimizer:
        """Wraps an optimizer; see ``Replicator.wrap_optimizer``."""
        return NotUpdatingOptimizer(self.original.wrap_optimizer(*args, **options))


class NotUpdatingOptimizer(Delegating):
    """An optimizer that updates nothing but its counter of iterations.

    Attributes:
      original: The optimizer that it was made of.
    """

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Sums gradients over replicas, as an update does first."""
        gradients = [g for g, _ in grads_and_vars if g is not None]
        summed = replicator.all_sum(gradients)
        used = tf.add_n([_one_number(value) for value in summed])
        # The counter depends on all sums: what nothing depends on is not computed.
        is_bad = tf.cast(tf.math.is_nan(used), self.original.iterations.dtype)
        self.original.iterations.assign(self.original.iterations + 1 - is_bad)
        return self.original.iterations


def _one_number(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.cast(tf.reshape(values, [-1])[0], tf.float32)
