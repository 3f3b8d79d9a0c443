"""Where a Keras optimizer makes the state that it keeps per variable."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from replicator._tf import compat as _tf_compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def placed(
    optimizer: Any,
    place: Callable[[Any], contextlib.AbstractContextManager[Any] | None],
    made: Callable[[Any, Any], None] | None = None,
) -> Iterator[None]:
    """Lets somebody choose the place of the slots that are made inside the block.

    Keras offers no hook for it, so the method that makes slots is replaced meanwhile.
    """
    make = optimizer.add_variable_from_reference

    def make_placed(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        variable = _tf_compat.unwrap(reference_variable)
        scope = place(variable)
        if scope is None:
            return make(reference_variable, *args, **kwargs)
        with scope:
            slot = make(reference_variable, *args, **kwargs)
        if made is not None:
            made(_tf_compat.unwrap(slot), variable)
        return slot

    optimizer.add_variable_from_reference = make_placed
    try:
        yield
    finally:
        del optimizer.add_variable_from_reference
