"""The line of a user's code that made an operation of a traced step."""

from __future__ import annotations

import linecache
import pathlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LIBRARIES = (
    f"{pathlib.Path(tf.__file__).parent}/",
    f"{pathlib.Path(keras.__file__).parent}/",
    f"{pathlib.Path(__file__).parents[2]}/",  # this one
)


def line_of(stack: Iterable[Any]) -> str:
    """The innermost line of a stack that is not in a library that this one builds on.

    Args:
      stack: What ``tf.Operation.traceback`` has: frames, outermost first.

    Returns:
      The file, the number of the line, and its text; empty without such a line.
    """
    for frame in reversed(list(stack)):
        if not frame.filename.startswith(_LIBRARIES):
            text = linecache.getline(frame.filename, frame.lineno).strip()
            return f"{frame.filename}:{frame.lineno}: {text}"
    return ""


def shown(lines: Sequence[str]) -> str:
    """Lines as part of a message; empty without any."""
    return f" at {', '.join(lines)}" if lines else ""
