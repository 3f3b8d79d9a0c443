"""Variables that a strategy of tf.distribute keeps several copies of."""

from __future__ import annotations

from typing import Any

from replicator._tf import compat as _tf_compat
from replicator.errors import OtherReplicatorError


def check(variable: Any) -> None:
    """Rejects a variable of whose copies a step of this library uses only the first.

    Raises:
      OtherReplicatorError: Names the variable and its strategy.
    """
    found = _tf_compat.strategy_copies(variable)
    if found is not None:
        strategy, num_copies = found
        raise OtherReplicatorError(
            f"variable {variable.name!r} was created in the scope of a {strategy}, "
            f"which keeps {num_copies} copies of it, and this replicator would use and "
            "update only the first; create the model inside `with repl.context():`, "
            "or run the step with replicator.StrategyReplicator(strategy)"
        )
