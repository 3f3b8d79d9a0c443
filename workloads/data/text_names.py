"""Which texts there are; the planner imports this module, so no TensorFlow."""

from __future__ import annotations


def check(name: str) -> None:
    """Raises, since a name that is not built in is no text."""
    raise ValueError(
        f"data {name!r} is not a text: use 'tensorflow_source', the Python files of "
        "the installed TensorFlow, or 'synthetic'"
    )
