"""Values of all replicas in the form that ``tf.distribute`` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_per_replica(value: Any) -> bool:
    """Whether a value has one for each local replica."""
    return isinstance(value, tf.distribute.DistributedValues)


def local_values(value: Any, num_local: int) -> tuple[Any, ...]:
    """One value per local replica; what is not per replica is the same on all."""
    if is_per_replica(value):
        return _tf_distribute.values_of(value)
    return (value,) * num_local


def grouped(values: Sequence[Any]) -> Any:
    """One value of ``tf.distribute``; of one replica, that value itself."""
    return values[0] if len(values) == 1 else _tf_distribute.per_replica(values)


def batch_of(values: Sequence[Any], num_replicas: int) -> Any:
    """The parts of a batch as one value; of one replica in all, that part itself."""
    return values[0] if num_replicas == 1 else _tf_distribute.per_replica(values)
