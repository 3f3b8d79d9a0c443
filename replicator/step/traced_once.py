"""Library functions that TensorFlow traces: many functions, each traced once.

TensorFlow counts traces per code object and warns if five calls in a row trace. Each
program of this library is traced once, but the same lines create all programs; so each
gets its own code object and is counted separately.
"""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

_COUNTER = itertools.count()


def traced_once(function: Callable[..., Any], **options: Any) -> Any:
    """Makes a ``tf.function`` that is counted apart from others of the same code."""
    owner = function.__self__ if isinstance(function, types.MethodType) else None
    inner: Any = getattr(function, "__func__", function)
    code = inner.__code__.replace(co_name=f"{inner.__name__}_{next(_COUNTER)}")
    own = types.FunctionType(
        code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__
    )
    own.__kwdefaults__ = inner.__kwdefaults__
    target = own if owner is None else types.MethodType(own, owner)
    return tf.function(target, **{"autograph": False, **options})
