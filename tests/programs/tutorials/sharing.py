"""Shares of global batches, for the replicas that a process runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import replicator


def share(repl: Any, *arrays: Any) -> Any:
    """One nest of ``PerReplica``: replica r gets the r-th part of each array."""

    def parts(array: Any) -> replicator.PerReplica[Any]:
        split = np.split(array, repl.num_replicas)
        first = repl.first_replica_id
        mine = split[first : first + repl.num_local_replicas]
        return replicator.PerReplica([tf.constant(part) for part in mine])

    return tuple(parts(array) for array in arrays)


def mean_of_all(value: Any) -> Any:
    """The mean over replicas of a loss: that of one device with the whole batch."""
    return replicator.all_mean(value)


def normal(seed: int, *shape: int) -> Any:
    """Numbers that are the same everywhere."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def arrays(variables: Any) -> list[Any]:
    """What variables hold, as NumPy arrays."""
    return [np.asarray(variable.numpy()) for variable in variables]
