"""Variables that a strategy of tf.distribute keeps several copies of."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator.errors import OtherReplicatorError

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(variable: Any) -> None:
    """Rejects a variable of whose copies a step of this library uses only the first."""
    found = _tf_compat.strategy_copies(variable)
    if found is not None:
        raise _error(variable.name, *found)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Says the same where TensorFlow only says that two strategies meet."""
    try:
        yield
    except RuntimeError as error:
        found = _tf_distribute.mixed_variable(error)
        if found is None:
            raise
        raise _error(*found) from error


def _error(name: str, strategy: str, num_copies: int) -> OtherReplicatorError:
    return OtherReplicatorError(
        f"variable {name!r} was created in the scope of a {strategy}, "
        f"which keeps {num_copies} copies of it, and this replicator would use and "
        "update only the first; create the model inside `with repl.context():`, "
        "or run the step with replicator.StrategyReplicator(strategy)"
    )
