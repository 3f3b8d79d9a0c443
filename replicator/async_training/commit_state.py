"""Commit state: what each parameter server records about the updates it has applied.

The commit state of a server changes only inside its locked section (``commit``), so its
numbers are consistent: the clock counts updates, ``update_counts`` counts them by
staleness, and a worker's sequence number is that of its last update, so that an update
that is sent twice is recognized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.step import creation

if TYPE_CHECKING:
    from collections.abc import Sequence

# The last bin counts everything that is at least as stale.
NUM_BINS = 1024


class CommitState:
    """The lock and the counts of one parameter server.

    Attributes:
      device: The server.
      mutex: Handle of the lock.
      clock: Updates that were applied here, over all workers; scalar int64.
      update_counts: Updates by staleness, the last bin with all above; int64 of
        ``NUM_BINS``.
      sequence_numbers: By worker, the number of its last update that was applied here;
        numbers have no gaps; scalar int64.
    """

    def __init__(self, device: str, num_workers: int, name: str) -> None:
        self.device = device
        with tf.init_scope(), creation.allowed(), tf.device(None), tf.device(device):
            self.mutex = tf.raw_ops.MutexV2(shared_name=name)
            self.clock = _counter()
            self.update_counts = tf.Variable(
                tf.zeros([NUM_BINS], tf.int64), trainable=False
            )
            self.sequence_numbers = [_counter() for _ in range(num_workers)]

    def copies_for(self, variable: Any, worker: int) -> Any | None:
        """What a worker has in the place of worker 0's sequence number, or None."""
        return (
            self.sequence_numbers[worker]
            if variable is self.sequence_numbers[0]
            else None
        )

    def shared(self) -> Sequence[Any]:
        """The variables that all workers use."""
        return (self.clock, self.update_counts)


def _counter() -> Any:
    return tf.Variable(tf.zeros([], tf.int64), trainable=False)
