"""Rejects variables that are created while a step function is traced."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.errors import CreateVariableInStepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _State(threading.local):
    is_allowed = False


_STATE = _State()


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Lets the library itself create variables (optimizer slots) during a trace."""
    before, _STATE.is_allowed = _STATE.is_allowed, True
    try:
        yield
    finally:
        _STATE.is_allowed = before


@contextlib.contextmanager
def forbidden_in_steps() -> Iterator[None]:
    """Makes the creation of variables inside it raise an actionable error.

    Raises:
      CreateVariableInStepError: From the statement that creates the variable.
    """

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if not _STATE.is_allowed:
            name = kwargs.get("name") or "Variable"
            raise CreateVariableInStepError(
                f"the step function created a variable ({name!r}), but a step runs "
                "many times and on many replicas; create models, metrics and other "
                "variables before it, inside `with repl.context():` (a Keras model "
                "creates its variables when it is built: call it once, or call "
                "model.build(shape))"
            )
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator):
        yield
