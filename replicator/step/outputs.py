"""The check of a step function's return value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.validation.user_functions import name_of

if TYPE_CHECKING:
    from collections.abc import Callable


def check_outputs(outputs: Any, step_fn: Callable[..., Any]) -> Any:
    """Turns a step's return value into a nest of tensors."""

    def convert(leaf: Any) -> tf.Tensor:
        try:
            return tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name_of(step_fn)} returned a {type(leaf).__name__!r}; a step "
                "returns a nest of tensors (loss, metrics) or None"
            ) from error

    return tf.nest.map_structure(lambda x: x if x is None else convert(x), outputs)
