"""Ledgers: what each parameter server remembers of the updates that it has applied.

A server's ledger is changed only in its locked section (``commit``), so its numbers fit
together: the clock counts updates, the tally counts updates by staleness, and a
worker's ticket is that of its last update, by which one that is sent twice is
recognized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.step import creation

if TYPE_CHECKING:
    from collections.abc import Sequence

# The last bin counts everything that is at least as stale.
NUM_BINS = 1024


class Ledger:
    """The lock and the counts of one parameter server.

    Attributes:
      device: The server.
      mutex: Handle of the lock.
      clock: Updates that were applied here, over all workers; scalar int64.
      tally: Updates by staleness, the last bin with all above; int64 of ``NUM_BINS``.
      tickets: By worker, the updates of that worker that were applied here, which are
        numbered without a gap; scalar int64.
    """

    def __init__(self, device: str, num_workers: int, name: str) -> None:
        self.device = device
        with tf.init_scope(), creation.allowed(), tf.device(None), tf.device(device):
            self.mutex = tf.raw_ops.MutexV2(shared_name=name)
            self.clock = _counter()
            self.tally = tf.Variable(tf.zeros([NUM_BINS], tf.int64), trainable=False)
            self.tickets = [_counter() for _ in range(num_workers)]

    def copies_for(self, variable: Any, worker: int) -> Any | None:
        """What a worker has in the place of worker 0's ticket, or None."""
        return self.tickets[worker] if variable is self.tickets[0] else None

    def shared(self) -> Sequence[Any]:
        """The variables that all workers use."""
        return (self.clock, self.tally)


def _counter() -> Any:
    return tf.Variable(tf.zeros([], tf.int64), trainable=False)
