"""Sums: other collectives, for backends whose only collective is a reduction.

The strategies of ``tf.distribute`` sum and average. A value of one replica reaches the
others as a sum with zeros, which costs R times the bytes of a gather.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Sums over the replicas of a backend.

    Attributes:
      num_replicas: R, at least 2.
      replica_id: Of this replica, a scalar int32.
      reduce: Takes tensors and ``sum`` or ``mean``; reduces each over replicas.
      has_static_shapes: Whether every shape has to be known when a step is traced.
    """

    num_replicas: int
    replica_id: tf.Tensor
    reduce: Callable[[Sequence[tf.Tensor], str], list[tf.Tensor]]
    has_static_shapes: bool = False

    def stack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Stacks each tensor over replicas: the sum of zeros with the own slice."""
        mine = tf.equal(tf.range(self.num_replicas), self.replica_id)
        wide = []
        for tensor in tensors:
            mask = tf.reshape(mine, [self.num_replicas] + [1] * len(tensor.shape))
            value = tf.expand_dims(tensor, 0)
            wide.append(tf.where(mask, value, tf.zeros_like(value)))
        return self.reduce(wide, "sum")
