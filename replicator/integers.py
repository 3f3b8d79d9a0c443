"""What counts as an integer where a user gives a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard


def is_integer(value: Any, *, least: int | None = None) -> TypeGuard[int]:
    """Whether a value is an integer, and not less than ``least``.

    ``True`` and ``False`` are none, though they are instances of ``int``.
    """
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return is_int and (least is None or value >= least)
