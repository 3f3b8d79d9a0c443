"""What an error of TensorFlow says, without what surrounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

# What TensorFlow attaches to a failure that it passes on from elsewhere, such as that
# of a collective which ended because another worker failed (test_between_graph).
DERIVED = b"type.googleapis.com/tensorflow.DerivedStatus"


def is_derived(error: tf.errors.OpError) -> bool:
    """Whether an error follows from another one, whatever its status code."""
    return DERIVED in (error.experimental_payloads or {})


def reason_of(error: BaseException) -> str:
    """The first line of an error's message that says something.

    Leaves out the name of the node (``{{node ...}} ``) and of the eager op.
    """
    message = str(getattr(error, "message", None) or error)
    line = first_line(message) or type(error).__name__
    return line.rpartition("}} ")[2].partition(" [Op:")[0]


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
