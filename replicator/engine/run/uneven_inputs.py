"""Uneven inputs: all workers end with the same step if one has no more data.

Each worker reads its own pipelines. Before a step communicates, workers count how many
of them have a batch for every replica; unless all have, none runs the step. Where the
last step can be divided (``inputs/last_step.py``), one worker that has a batch is
enough. The count is one number in one collective, and is skipped if no pipeline can
end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.inputs import last_step
from replicator.inputs.reads import Source, all_read, next_batches
from replicator.variables import values

if TYPE_CHECKING:
    from replicator.placement.topology import Group, Topology


class UnevenInputs:
    """Reads the batches of steps that run on all workers or on none."""

    def __init__(self, topology: Topology, group: Group) -> None:
        self._topology = topology
        self._group = group
        # Drawn once: a function that is traced again uses the same.
        self._key = next(group.keys)

    def next_batches(self, source: Source) -> tuple[list[Any], list[Any]]:
        """Emits reading the batch of every replica of this worker."""
        num_replicas = self._topology.num_local_replicas
        batches = source.read_each(
            num_replicas, lambda iterator: iterator.get_next_as_optional()
        )
        are_fed = [batch.has_value() for batch in batches]
        checked = self.check(tf.reduce_all(are_fed), self._group.num_workers)
        with tf.control_dependencies([checked]):
            return [batch.get_value() for batch in batches], [checked]

    def check(self, is_fed: tf.Tensor, num_needed: int) -> tf.Tensor:
        """Emits an op that raises an error where too few workers have data."""
        with tf.device(values.cpu(self._topology)):
            num_fed = values.reduce(
                tf.cast(is_fed, tf.int32), self._topology, self._group, self._key
            )
            return last_step.end_unless(num_fed >= num_needed)


def read(
    source: Any, num_replicas: int, end: UnevenInputs | None
) -> tuple[list[Any], list[Any]]:
    """Emits reading one step's batches, with or without uneven inputs."""
    if source is None:
        return [], []
    if isinstance(source, Source) and last_step.is_filled(source.iterators[0]):
        batches, is_fed = last_step.divide(next_batches(source, num_replicas))
        ended = last_step.end_unless(is_fed) if end is None else end.check(is_fed, 1)
        return batches, [ended]
    if end is not None:
        return end.next_batches(source)
    batches = next_batches(source, num_replicas)
    return batches, [all_read(batches)]
