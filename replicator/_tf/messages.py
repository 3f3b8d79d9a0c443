"""What an error of TensorFlow says, without what surrounds it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

# What TensorFlow attaches to a failure that it passes on from elsewhere, such as that
# of a collective which ended because another worker failed (test_between_graph).
DERIVED = b"type.googleapis.com/tensorflow.DerivedStatus"

# Lines in which the error of a graph says where it arose, and how often
# (test_sharded_over_workers).
_PLACES = re.compile(
    r'Graph execution error:|Detected at node|<stack traces|File "|\d+ root error'
)
# What AutoGraph and Keras add to an error while a function is traced.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_START = re.compile(r"[A-Za-z_.]*(Error|Exception): ")
# What it puts in front of each.
_ROOT = re.compile(r"\(\d+\) [A-Z_]+: +")


def is_derived(error: tf.errors.OpError) -> bool:
    """Whether an error follows from another one, whatever its status code."""
    return DERIVED in (error.experimental_payloads or {})


def reason_of(error: BaseException) -> str:
    """The first line of an error's message that says something.

    Leaves out the name of the node (``{{node ...}} ``) and of the eager op, and the
    lines of the program that a graph adds in front.
    """
    message = str(getattr(error, "message", None) or error)
    lines = [line.strip() for line in message.splitlines()]
    said = "\n".join(line for line in lines if not _PLACES.match(line))
    line = _ROOT.sub("", first_line(said), count=1) or type(error).__name__
    return line.rpartition("}} ")[2].partition(" [Op:")[0]


def trace_reason_of(error: Exception) -> str:
    """The line that says why a trace failed, without what AutoGraph and Keras add."""
    text = _COLOURS.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if _START.match(line)]
    lines = lines[starts[-1] :] if starts else lines
    lines = [line for line in lines if "Exception encountered" not in line]
    return _START.sub("", lines[0]) if lines else type(error).__name__


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
