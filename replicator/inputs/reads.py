"""Reads: how many elements each iterator of a job was asked for.

A step that fails has consumed its batches, like one that succeeds: the next step reads
the next ones, and positions count it. So the graph counts, before each
read, on the device of the iterator. The count is exact, but for pipelines of which one
raises while another is read: whether that read was ended before it began is unknown.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import data as _tf_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Source(NamedTuple):
    """What a dispatch reads: a nest that functions take."""

    iterators: tuple[Any, ...]  # Each feeds an equal share of the replicas, in order.
    counters: tuple[Any, ...]  # The handle of each one's counter.

    def read(
        self, place: int, read: Callable[[Any], Any], after: Sequence[Any] = ()
    ) -> Any:
        """Emits a read of one iterator, and its count."""
        leaves = tf.nest.flatten(list(after), expand_composites=True)[:1]
        with tf.control_dependencies(leaves):
            count = tf.raw_ops.AssignAddVariableOp(
                resource=self.counters[place], value=tf.constant(1, tf.int64)
            )
        with tf.control_dependencies([count]):
            return read(self.iterators[place])

    def read_each(
        self, num_replicas: int, read: Callable[[Any], Any] = next
    ) -> list[Any]:
        """Emits reading the batch of every replica, in order."""
        share = num_replicas // len(self.iterators)
        batches: list[Any] = []
        for replica in range(num_replicas):
            after = batches[-1:] if replica % share else []
            batches.append(self.read(replica // share, read, after))
        return batches


class Reads:
    """Counts the reads of iterators, from their first element.

    Attributes:
      source: What the graph of a dispatch reads.
    """

    def __init__(
        self, iterators: Sequence[Any], per_step: int, devices: Sequence[str]
    ) -> None:
        """Makes the counters."""
        self._per_step = per_step
        self._counters = [_tf_data.make_counter(device) for device in devices]
        # A function on another worker could otherwise count before its counter is 0.
        _tf_compat.wait_for_remote_ops()
        handles = tuple(counter.handle for counter in self._counters)
        self.source = Source(iterators=tuple(iterators), counters=handles)
        self._num_eager = [0] * len(iterators)
        self._num_settled = [0] * len(iterators)

    def next(self, place: int) -> Any:
        """Reads one element eagerly."""
        self._num_eager[place] += 1
        return next(self.source.iterators[place])

    def settle(self, num_steps: int) -> None:
        """Takes note of steps that have read all their batches."""
        for place in range(len(self._num_settled)):
            self._num_settled[place] += num_steps * self._per_step

    def recount(self, *, drops_rest: bool) -> int:
        """Notes what was read since the last steps that are noted."""
        begun = [
            eager + int(counter.numpy())
            for eager, counter in zip(self._num_eager, self._counters, strict=True)
        ]
        news = [b - s for b, s in zip(begun, self._num_settled, strict=True)]
        num_steps = -(-max(news) // self._per_step)
        self._num_settled = begun
        if drops_rest:
            for place, read in enumerate(news):
                for _ in range(num_steps * self._per_step - read):
                    self._drop(place)
        return num_steps

    def _drop(self, place: int) -> None:
        # An element that raises is consumed as well; the end comes again.
        with contextlib.suppress(StopIteration, tf.errors.OpError):
            self.next(place)
        self._num_settled[place] += 1


def next_batches(source: Sequence[Any], num_replicas: int) -> list[Any]:
    """Reads the batch of every replica; works in graphs and eagerly."""
    if isinstance(source, Source):
        return source.read_each(num_replicas)
    if isinstance(source[0], tf.data.Iterator):
        # Reads of one iterator keep program order.
        share = num_replicas // len(source)
        return [next(source[replica // share]) for replica in range(num_replicas)]
    return list(source)


def all_read(batches: Sequence[Any]) -> tf.Operation:
    """Emits an op that runs after all batches were read.

    A step waits for it: an update that needs no batch must not run in a step for which
    a batch is missing. (TensorFlow drops control inputs that are also data inputs.)
    """
    leaves = [tf.nest.flatten(b, expand_composites=True)[0] for b in batches]
    with tf.control_dependencies(leaves):
        return tf.no_op("all_read")
