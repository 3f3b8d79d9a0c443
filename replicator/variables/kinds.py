"""Kinds of variables, by how the copies of the replicas relate.

*Mirrored* variables have the same value on every replica. *Local* variables
(batch-norm statistics) have a copy per replica that may differ; outside steps, the
user's own variable has their mean. *Random* variables are the state of random
generators; each replica's copy is the user's state with the replica id folded in, and
outside steps the user's own variable has that of replica 0. *Partial* variables
(gradients that are not averaged yet) have a copy per replica of which only the mean has
a meaning: it is not published after every run, because that would communicate;
``partial.consolidate`` sets all copies to their mean.
"""

from __future__ import annotations

import enum
from typing import Any

import tensorflow as tf

# Attribute that marks a variable as partial.
_IS_PARTIAL = "_replicator_is_partial"
# Attribute that marks a variable as a sum, of which each replica has a part.
_IS_SUM = "_replicator_is_sum"


class Kind(enum.Enum):
    """How the copies of a variable relate."""

    MIRRORED = "mirrored"
    LOCAL = "local"
    RANDOM = "random"
    PARTIAL = "partial"

    @property
    def is_per_replica(self) -> bool:
        """Whether each copy has a value of its own, which counts."""
        return self in (Kind.LOCAL, Kind.RANDOM)


def declared_kind(variable: Any) -> Kind:
    """The kind according to a variable's own flags, before any step is analyzed."""
    if getattr(variable, _IS_PARTIAL, False):
        return Kind.PARTIAL
    name = variable.name.partition(":")[0].rpartition("/")[2]
    is_keras_state = name.startswith("seed_generator_state") and variable.shape == (2,)
    is_generator_state = name == "StateVar" and variable.dtype == tf.int64
    if is_keras_state or is_generator_state:
        return Kind.RANDOM
    is_on_read = variable.synchronization == tf.VariableSynchronization.ON_READ
    is_local = is_on_read or getattr(variable, _IS_SUM, False)
    return Kind.LOCAL if is_local else Kind.MIRRORED


def declare_partial(variable: Any) -> None:
    """Marks a variable as partial: only the mean of its copies has a meaning."""
    setattr(variable, _IS_PARTIAL, True)


def declare_summed(variable: Any) -> None:
    """Marks a variable as a sum, of which each replica has a part."""
    setattr(variable, _IS_SUM, True)


def is_averaged(variable: Any) -> bool:
    """Whether a replica-local variable reads as the mean over replicas outside."""
    is_first = variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    is_mean = not is_first and not is_summed(variable)
    return is_mean and bool(variable.dtype.is_floating)


def is_summed(variable: Any) -> bool:
    """Whether a replica-local variable reads as the sum over replicas outside."""
    dtype = variable.dtype
    is_sum = variable.aggregation == tf.VariableAggregation.SUM
    return (is_sum or getattr(variable, _IS_SUM, False)) and (
        dtype.is_floating or dtype.is_integer
    )
