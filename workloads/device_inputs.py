"""How pipelines feed GPUs: more threads, and batches that wait on their devices.

A GPU takes about a hundred times as many examples per second as a CPU core, and one
pipeline feeds all GPUs of a process. Where replicas compute on CPUs, which pipelines
would take from them, nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import replicator

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf

NUM_PREFETCHED = 2
"""Batches that wait on each GPU: one is read by the step while the next is copied."""


def make_iterator(
    repl: replicator.Replicator,
    input_fn: Callable[[replicator.InputContext], tf.data.Dataset],
    mode: replicator.InputReplicationMode = (
        replicator.InputReplicationMode.PER_WORKER
    ),
) -> replicator.InputIterator:
    """Makes the pipelines of a workload; on GPUs, batches are prefetched to them."""
    return repl.make_input_iterator(
        input_fn, mode, prefetch_to_device=NUM_PREFETCHED if repl.feeds_gpus else 0
    )


def num_threads(
    repl: replicator.Replicator, context: replicator.InputContext, configured: int
) -> int:
    """Returns the threads of one pipeline."""
    if not repl.feeds_gpus:
        return configured
    return configured * max(
        1, context.num_replicas_in_sync // context.num_input_pipelines
    )
