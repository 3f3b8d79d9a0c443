"""Functions of the library that TensorFlow traces: many, each of them once.

TensorFlow counts tracings by the code of a function and warns when five calls in a row
traced, whoever made them. A program of ours is traced once, but all programs are made
by the same lines; so each gets a code object of its own, and is counted by itself.
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
    """Makes a ``tf.function`` that is counted apart from others with the same code.

    Args:
      function: A function, or a method that is bound.
      **options: Of ``tf.function``; AutoGraph is off unless they say otherwise.
    """
    owner = function.__self__ if isinstance(function, types.MethodType) else None
    inner: Any = getattr(function, "__func__", function)
    code = inner.__code__.replace(co_name=f"{inner.__name__}_{next(_COUNTER)}")
    own = types.FunctionType(
        code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__
    )
    own.__kwdefaults__ = inner.__kwdefaults__
    target = own if owner is None else types.MethodType(own, owner)
    return tf.function(target, **{"autograph": False, **options})
