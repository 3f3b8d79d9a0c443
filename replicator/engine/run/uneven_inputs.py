"""Uneven inputs: all workers end with the same step if one has no more data.

Each worker reads its own pipelines. Before a step communicates, workers count how many
of them have a batch for every replica; unless all have, none runs the step. The count
is one number in one collective, and is skipped if no pipeline can end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.inputs.iterator import all_read, next_batches
from replicator.variables import worker_values

if TYPE_CHECKING:
    from replicator.inputs.reads import Source
    from replicator.placement.topology import Topology
    from replicator.placement.worker_group import Group


class UnevenInputs:
    """Reads the batches of steps that run on all workers or on none."""

    def __init__(self, topology: Topology, group: Group) -> None:
        self._topology = topology
        self._group = group
        # Drawn once: a function that is traced again uses the same.
        self._key = next(group.keys)
        self._never = iter(tf.data.Dataset.range(0))

    def next_batches(self, source: Source) -> tuple[list[Any], list[Any]]:
        """Emits reading the batch of every replica of this worker.

        Args:
          source: Iterators, of which each feeds an equal share of the replicas.

        Returns:
          A nest per replica, and the tensors that the step has to wait for. Both raise
          ``tf.errors.OutOfRangeError`` on all workers if one has no batch.
        """
        num_replicas = self._topology.num_local_replicas
        batches = source.read_each(
            num_replicas, lambda iterator: iterator.get_next_as_optional()
        )
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
      end: Handles uneven inputs between workers; None if they cannot occur.

    Returns:
      A nest per replica (nothing without a source), and what the step has to wait for.
    """
    if source is None:
        return [], []
    if end is not None:
        return end.next_batches(source)
    batches = next_batches(source, num_replicas)
    return batches, [all_read(batches)]
