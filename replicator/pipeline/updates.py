"""Updates of what a stage keeps beside its weights, such as averages of batch norm.

Statistics are those of a micro-batch; what is kept is updated once per batch from all
of them (Huang et al. 2019, appendix). Keras' own scope for stateless calls says what a
layer would assign. The mean of what micro-batches would assign is that one update, for
whatever is linear in the statistics, as moving averages are.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Updates:
    """What a stage would assign, in one trace of it.

    Attributes:
      variables: Of Keras, in the order of their first update.
    """

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self.variables: list[Any] = []

    @property
    def values(self) -> list[Any]:
        """The last value of each."""
        return [self._values[id(variable)] for variable in self.variables]

    def add(self, variable: Any, value: Any) -> None:
        """Notes one assignment."""
        if id(variable) not in self._values:
            self.variables.append(variable)
        self._values[id(variable)] = value


@contextlib.contextmanager
def noted() -> Iterator[Updates]:
    """Lets variables of Keras keep their values inside, and notes what is assigned."""
    updates = Updates()
    keras = sys.modules.get("keras")
    if keras is None:  # a program need not import it
        yield updates
        return

    class Scope(keras.StatelessScope):  # type: ignore[name-defined]
        def add_update(self, update: Any) -> None:
            super().add_update(update)
            updates.add(*update)

    with Scope():
        yield updates
