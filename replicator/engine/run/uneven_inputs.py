"""The end of data that several workers read: the same step on all of them.

Each worker reads its own pipelines. Before a step communicates, workers count how many
of them have all batches of theirs; unless all have, none runs it. The count is one
number in one collective, so it is taken only where data may end at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.inputs.iterator import all_read, next_batches
from replicator.variables import worker_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.placement.topology import Topology
    from replicator.placement.worker_group import Group


class UnevenInputs:
    """Reads the batches of steps that either all workers can feed, or none runs."""

    def __init__(self, topology: Topology, group: Group) -> None:
        self._topology = topology
        self._group = group
        # Drawn once: a function that is traced again uses the same.
        self._key = next(group.keys)
        self._never = iter(tf.data.Dataset.range(0))

    def next_batches(self, source: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Emits reading the batch of every replica of this worker.

        Args:
          source: Iterators, of which each feeds an equal share of the replicas.

        Returns:
          A nest per replica, and what the step has to wait for. Both end in
          ``tf.errors.OutOfRangeError`` on all workers where one has no batch.
        """
        num_replicas = self._topology.num_local_replicas
        share = num_replicas // len(source)
        batches = [
            source[replica // share].get_next_as_optional()
            for replica in range(num_replicas)
        ]
        are_fed = [batch.has_value() for batch in batches]
        with tf.device(worker_values.cpu(self._topology)):
            is_fed = tf.cast(tf.reduce_all(tf.stack(are_fed)), tf.int32)
            num_fed = worker_values.reduce(
                is_fed, self._topology, self._group, self._key
            )
            # Reading what has no element is TensorFlow's own error for the end of data.
            checked = tf.cond(
                tf.equal(num_fed, self._group.num_workers),
                lambda: tf.constant(0, tf.int64),
                lambda: next(self._never),
            )
        with tf.control_dependencies([checked]):
            return [batch.get_value() for batch in batches], [checked]


def read(
    source: Any, num_replicas: int, end: UnevenInputs | None
) -> tuple[list[Any], list[Any]]:
    """Emits reading one step's batches, with or without uneven inputs.

    Args:
      source: None, iterators, or one nest of tensors per replica.
      num_replicas: Replicas of this worker.
      end: The end that workers have in common; None where there is none.

    Returns:
      A nest per replica (nothing without a source), and what the step has to wait for.
    """
    if source is None:
        return [], []
    if end is not None:
        return end.next_batches(source)
    batches = next_batches(source, num_replicas)
    return batches, [all_read(batches)]
