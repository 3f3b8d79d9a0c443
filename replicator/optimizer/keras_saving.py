"""Keras' own saving of a wrapped optimizer: ``.keras``, ``.weights.h5`` and callbacks.

The file is that of the optimizer inside, number by number, so that it can be loaded
without this library, and the other way round. State of options (a dynamic loss scale,
an unfinished accumulation) is in a group beside it, which Keras skips if nobody asks.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from replicator._tf import compat as _tf_compat
from replicator._tf.keras_saving import SavedApart
from replicator.errors import OptimizerOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replicator.variables.ownership import Ownership


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionVariable:
    """A variable of an option."""

    variable: Any  # A Keras variable.
    initial: float = 0.0  # What all its elements are at first.


class OptionsState(SavedApart):
    """The state that options of ``wrap_optimizer`` add to a Keras optimizer.

    Attributes:
      entries: By name. Keras' own names would differ between processes.
      count: Calls since the last update if each replica has sums of its own, which a
        file of Keras cannot hold; else None.
    """

    def __init__(self) -> None:
        self.entries: dict[str, OptionVariable] = {}
        self.count: Any = None

    def save_own_variables(self, store: Any) -> None:
        """Writes all, by name."""
        count = 0 if self.count is None else int(self.count)
        if count:
            raise OptimizerOptionError(
                f"Keras cannot save the gradients of {count} calls that each replica "
                "has accumulated since the last update; save after a call that "
                "updates, or by repl.make_checkpoint_manager()"
            )
        for name, entry in self.entries.items():
            store[name] = entry.variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what there is; the rest starts anew, as without the option before."""
        saved = set(store.keys())
        for name, entry in self.entries.items():
            shape, dtype = entry.variable.shape, entry.variable.dtype
            start = np.full(shape, entry.initial, dtype)
            entry.variable.assign(store[name] if name in saved else start)


def check_is_here(variables: Iterable[Any], ownership: Ownership | None) -> None:
    """Rejects state that ``sharded_update`` keeps in other processes."""
    if ownership is not None and any(
        ownership.is_elsewhere(_tf_compat.unwrap(variable)) for variable in variables
    ):
        raise OptimizerOptionError(
            "Keras cannot save or load an optimizer whose state sharded_update=True "
            "keeps in several processes; use repl.make_checkpoint_manager()"
        )
