"""What a stage reads and updates of Keras' variables, while it is traced.

Updates are of what it keeps beside its weights, such as averages of batch norm.

Statistics are those of a micro-batch; what is kept is updated once per batch from all
of them (Huang et al. 2019, appendix). Keras' own scope for stateless calls says what a
layer would assign. The mean of what micro-batches would assign is that one update, for
whatever is linear in the statistics, as moving averages are.

With mixed precision, a layer casts its weights where it reads them: once per task. So
what is cast is noted as well, and can be given: cast once per step, outside the tasks.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from replicator._tf import compat as _tf_compat
from replicator.errors import CreateVariableInStepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NOTHING: Final[Mapping[tuple[int, str], Any]] = types.MappingProxyType({})


class Updates:
    """What a stage would assign, in one trace of it.

    Attributes:
      variables: Of Keras, in the order of their first update.
      casts: Variables that are read in another type, and that type, in their order.
    """

    def __init__(self, given: Mapping[tuple[int, str], Any]) -> None:
        self._values: dict[int, Any] = {}
        self._given = given
        self.variables: list[Any] = []
        self.casts: dict[tuple[int, str], Any] = {}

    @property
    def values(self) -> list[Any]:
        """The last value of each."""
        return [self._values[id(variable)] for variable in self.variables]

    def read(self, variable: Any) -> Any:
        """Returns what is given for a variable as it is read now; None for itself.

        Raises:
          CreateVariableInStepError: Keras would draw its initial value in every task.
        """
        inner = _tf_compat.unwrap(variable)
        if inner is variable:  # Keras makes no tf.Variable in this scope
            raise CreateVariableInStepError(variable.path)
        wanted = str(variable.dtype)  # within a layer of mixed precision: its own
        if wanted == inner.dtype.name:
            return None
        key = id(variable), wanted
        self.casts[key] = variable
        return self._given.get(key)

    def add(self, variable: Any, value: Any) -> None:
        """Notes one assignment."""
        if id(variable) not in self._values:
            self.variables.append(variable)
        self._values[id(variable)] = value


@contextlib.contextmanager
def noted(given: Mapping[tuple[int, str], Any] = _NOTHING) -> Iterator[Updates]:
    """Lets variables of Keras keep their values inside, and notes what is assigned.

    Args:
      given: Values of variables in other types, by the keys of ``Updates.casts``.
    """
    updates = Updates(given)
    keras = sys.modules.get("keras")
    if keras is None:  # a program need not import it
        yield updates
        return

    class Scope(keras.StatelessScope):  # type: ignore[name-defined]
        def get_current_value(self, variable: Any) -> Any:
            assigned = super().get_current_value(variable)
            return updates.read(variable) if assigned is None else assigned

        def add_update(self, update: Any) -> None:
            super().add_update(update)
            updates.add(*update)

    with Scope():
        yield updates
