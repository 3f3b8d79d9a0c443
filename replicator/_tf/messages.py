"""What an error of TensorFlow says, without what surrounds it."""

from __future__ import annotations


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
