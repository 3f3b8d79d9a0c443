"""Tracing: functions that are traced once, loops of steps, and lines of users' code.

TensorFlow counts traces per code object and warns if five calls in a row trace. Each
program of this library is traced once, but the same lines create all programs; so each
gets its own code object and is counted separately.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sysconfig
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_COUNTER = itertools.count()
# Files whose lines are not those of a user: of this package, of Python, and of these.
_HERE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_paths()["stdlib"])
_FRAMEWORKS = frozenset({"keras", "tensorflow", "tf_keras"})


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


def repeat(
    step: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    num_steps: int | tf.Tensor,
    specs: Sequence[tf.TensorSpec],
) -> list[tf.Tensor]:
    """Runs ``step`` ``num_steps`` times in the graph being built."""
    if isinstance(num_steps, int) and num_steps == 1:
        return list(step(tf.constant(0)))
    # The loop needs initial values; they are never read.
    start = [tf.zeros([d or 0 for d in s.shape], s.dtype) for s in specs]

    def body(index: tf.Tensor, *_previous: tf.Tensor) -> list[tf.Tensor]:
        return [index + 1, *step(index)]

    final = tf.while_loop(
        lambda index, *_: index < num_steps,
        body,
        [tf.constant(0), *start],
        shape_invariants=[tf.TensorShape([]), *(s.shape for s in specs)],
        # Training steps depend on each other: more iterations would only use memory.
        parallel_iterations=1,
    )
    return list(final[1:])


def line_of(stack: Iterable[Any] | None) -> str:
    """The line of a user's code that made an operation: the innermost of its stack."""
    for frame in reversed(list(stack or ())):
        if not _is_library(frame.filename):
            text = linecache.getline(frame.filename, frame.lineno).strip()
            return f"{frame.filename}:{frame.lineno}: {text}"
    return ""


def shown(lines: Sequence[str]) -> str:
    """Lines as part of a message; empty without any."""
    found = [line for line in lines if line]
    return f" at {', '.join(found)}" if found else ""


@functools.cache  # a step has thousands of frames, of few files
def _is_library(name: str) -> bool:
    path = Path(name)
    if path.name.startswith("<") or path.is_relative_to(_HERE):
        return True
    parts = path.parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return parts[parts.index(folder) + 1] in _FRAMEWORKS
    return path.is_relative_to(_PYTHON)
