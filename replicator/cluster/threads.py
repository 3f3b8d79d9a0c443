"""Threads between operations: those that wait for others must leave some that work."""

from __future__ import annotations

import os

import tensorflow as tf

from replicator.errors import DeviceError

# Requests of a cluster wait on these threads for locks and messages. TensorFlow starts
# one per core, and on one core nothing is left to run what they wait for.
_LEAST = 4


def needed() -> int:
    """The threads between operations of a process that is part of a cluster."""
    chosen = tf.config.threading.get_inter_op_parallelism_threads()
    return max(chosen or len(os.sched_getaffinity(0)), _LEAST)


def ensure() -> None:
    """Gives this process enough threads between operations.

    Raises:
      DeviceError: TensorFlow runs already, with too few.
    """
    if tf.config.threading.get_inter_op_parallelism_threads() == needed():
        return
    try:
        tf.config.threading.set_inter_op_parallelism_threads(needed())
    except RuntimeError:
        if len(os.sched_getaffinity(0)) < _LEAST:
            raise DeviceError(
                "TensorFlow runs already, with fewer threads than parameter servers "
                "need, so the first step might never end; create the replicator before "
                "the first tensor, or call tf.config.threading."
                f"set_inter_op_parallelism_threads({_LEAST}) at the start"
            ) from None
