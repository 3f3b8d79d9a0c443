"""Arguments of users: their display in messages; checks of names, numbers and paths.

Does not import TensorFlow, which ``create`` imports only with the backend.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container
    from typing import TypeGuard

# The largest values of TensorFlow's integer types; a Python int has no limit.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_PLAIN = (bool, int, float, str, bytes, type(None))
_MOST_BITS = 128  # Python refuses to format integers of thousands of digits
_MOST_CHARACTERS = 100


def shown(value: Any) -> str:
    """How messages show a value: in one line, however large the value is."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    if _is_plain(value):
        text = repr(value)
        is_short = len(text) <= _MOST_CHARACTERS
        return text if is_short else f"{text[: _MOST_CHARACTERS - 3]}..."
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = getattr(value.dtype, "name", value.dtype)
        return f"a {type(value).__name__!r} of {dtype} and shape {value.shape}"
    return f"a {type(value).__name__!r}"


def is_one_of(value: Any, names: Container[str]) -> TypeGuard[str]:
    """Whether a value is one of several names; ``in`` alone would compare tensors."""
    return isinstance(value, str) and value in names


def is_integer(
    value: Any, *, least: int | None = None, most: int | None = None
) -> TypeGuard[int]:
    """Whether a value is an integer, not less than ``least`` nor more than ``most``.

    ``True`` and ``False`` do not count, although they are instances of ``int``.
    """
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return (
        is_int and (least is None or value >= least) and (most is None or value <= most)
    )


def is_positive(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number above zero; a bool and a tensor are not."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max


def path_of(value: Any, argument: str) -> str:
    """Returns a path as a string."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{argument} must be a path, but got {shown(value)}; pass a string or a "
            "pathlib.Path"
        )
    path = os.fsdecode(value)
    if not path or "\0" in path:
        raise ValueError(
            f"{argument} must be a path, but got {shown(path)}, which cannot name a "
            "file; pass a non-empty string without null characters, or a pathlib.Path"
        )
    return path


def listed(value: Any, said: str) -> list[Any]:
    """Returns the items of an iterable, in order."""
    is_data = hasattr(value, "element_spec")  # endless where a step is traced
    if hasattr(type(value), "__iter__") and not is_data:
        try:
            iterator = iter(value)
        except TypeError:
            pass
        else:
            return list(iterator)
    raise TypeError(f"{said}, but got {shown(value)}")


def _is_plain(value: Any) -> bool:
    """Whether the ``repr`` of a value is short and has one line."""
    if isinstance(value, (list, tuple)):
        few = value[:_MOST_CHARACTERS]
        return all(_is_plain(item) and not _is_huge(item) for item in few)
    return isinstance(value, _PLAIN)


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > _MOST_BITS
