"""Kinds of variables, by how the copies of the replicas relate.

*Mirrored* variables have the same value on every replica. *Local* variables
(batch-norm statistics) have a copy per replica that may differ; outside steps they read
as the mean. *Random* variables are the state of random generators; each replica's copy
is the user's state with the replica id folded in, and outside it is that of replica 0.
*Partial* variables (gradients that are not averaged yet) have a copy per replica of
which only the mean has a meaning; it is not published after every run, because that
would communicate: ``coherence.consolidate`` sets all copies to it.
"""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator.errors import OtherReplicatorError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Attribute that marks a variable as partial.
_IS_PARTIAL = "_replicator_is_partial"
# Attribute that marks a variable as a sum, of which each replica has a part.
_IS_SUM = "_replicator_is_sum"
# Odd constants of Knuth's multiplicative hash: distinct replicas get distinct keys.
_FOLD_31 = 0x1E3779B1
_FOLD_63 = 0x1E3779B97F4A7C15


class Kind(enum.Enum):
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
    setattr(variable, _IS_PARTIAL, True)


def declare_summed(variable: Any) -> None:
    setattr(variable, _IS_SUM, True)


def is_summed(variable: Any) -> bool:
    """Whether a replica-local variable reads as the sum over replicas outside."""
    dtype = variable.dtype
    is_sum = variable.aggregation == tf.VariableAggregation.SUM
    return (is_sum or getattr(variable, _IS_SUM, False)) and (
        dtype.is_floating or dtype.is_integer
    )


def replica_value(
    value: tf.Tensor,
    kind: Kind,
    replica_id: int,
    num_replicas: int,
    *,
    is_sum: bool = False,
) -> tf.Tensor:
    """The value of a replica's copy after the user has set the variable."""
    if kind is Kind.LOCAL and is_sum:
        # Copies must sum to the value; replica 0 takes the remainder of the division.
        share = tf.zeros_like(value) if num_replicas == 1 else value // num_replicas
        return value - share * (num_replicas - 1) if replica_id == 0 else share
    if kind is not Kind.RANDOM or replica_id == 0:
        return value
    # Keras: [seed, counter]; tf.random.Generator: [counter, counter, key].
    is_keras = value.shape == (2,)
    limit = 31 if value.dtype.size == 4 else 63  # noqa: PLR2004 (bytes of int32)
    key = (_FOLD_31 if limit == 31 else _FOLD_63) * replica_id % (1 << limit)  # noqa: PLR2004
    position = 0 if is_keras else value.shape[0] - 1
    mask = tf.one_hot(position, value.shape[0], key, 0, dtype=value.dtype)
    return tf.bitwise.bitwise_xor(value, mask)


def check_foreign(variable: Any) -> None:
    """Rejects a variable of whose copies a step of this library uses only the first."""
    copies = _tf_compat.strategy_copies(variable)
    if copies is not None:
        raise _foreign_error(variable.name, *copies)


@contextlib.contextmanager
def foreign_explained() -> Iterator[None]:
    """Raises the same error where TensorFlow only says that two strategies meet."""
    try:
        yield
    except RuntimeError as error:
        mixed = _tf_distribute.mixed_variable(error)
        if mixed is None:
            raise
        raise _foreign_error(*mixed) from error


def _foreign_error(name: str, strategy: str, num_copies: int) -> OtherReplicatorError:
    return OtherReplicatorError(
        f"variable {name!r} was created in the scope of a {strategy}, "
        f"which keeps {num_copies} copies of it, and this replicator would use and "
        "update only the first; create the model inside `with repl.context():`, "
        "or run the step with replicator.StrategyReplicator(strategy)"
    )
